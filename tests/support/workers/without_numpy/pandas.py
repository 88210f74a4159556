"""As ``numpy.py`` beside it."""

raise ModuleNotFoundError(f"the worker's image has no {__name__}", name=__name__)
