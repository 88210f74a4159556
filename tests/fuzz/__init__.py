"""Fuzzing of all that reads bytes from others: seeded, so that every input can be made again.

``python -m tests.fuzz --seed 1 --inputs 100000`` prints counts, or the first input that broke a rule.
"""
