"""Builds the compiled record parser where there is a C compiler; the pure-Python twin serves elsewhere."""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    ext_modules=cythonize(
        [
            Extension(
                "slackwater.kafka.records._parser",
                ["slackwater/kafka/records/_parser.pyx"],
                optional=True,
            )
        ],
        language_level=3,
    )
)
