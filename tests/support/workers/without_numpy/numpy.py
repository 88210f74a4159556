"""On the PYTHONPATH of a worker: it finds no numpy, as in the image of the engines arrow and python.

pyarrow loads numpy and pandas where it finds them, which takes longer than the rest of a worker's start.
"""

raise ModuleNotFoundError(f"the worker's image has no {__name__}", name=__name__)
