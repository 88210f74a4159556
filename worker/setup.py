"""Builds the compiled record parser where there is a C compiler; the pure-Python twin serves elsewhere."""

from Cython.Build import cythonize
from setuptools import Extension, setup

# -g0: debugging information would be four fifths of the file. With Python's limited API (abi3) one wheel
# would serve all versions, but it reads small batches 15 % slower: docs/design/packages.md.
extensions = cythonize(
    [
        Extension(
            "slackwater.kafka.records._parser",
            ["slackwater/kafka/records/_parser.pyx"],
            extra_compile_args=["-g0"],
        )
    ],
    language_level=3,
    build_dir="build/cython",
)
for extension in extensions:
    extension.optional = True  # cythonize makes new extensions and forgets this one of their options

setup(ext_modules=extensions)
