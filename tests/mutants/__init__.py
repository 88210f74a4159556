"""Seeded faults: whether the unit tests notice the mistakes that a programmer could make in the product.

``python -m tests.mutants`` makes one fault at a time in a copy of the repository, and runs tests there.
"""
