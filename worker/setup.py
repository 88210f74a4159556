"""Builds the compiled record parser where there is a C compiler; the pure-Python twin serves elsewhere."""

from Cython.Build import cythonize
from setuptools import Extension, setup

extensions = cythonize(
    [Extension("slackwater.kafka.records._parser", ["slackwater/kafka/records/_parser.pyx"])],
    language_level=3,
)
for extension in extensions:
    extension.optional = True  # cythonize makes new extensions and forgets this one of their options

setup(ext_modules=extensions)
