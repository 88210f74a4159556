"""A sink that the user has written: a class or a function."""
