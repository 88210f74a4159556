"""Whole groups of our consumers against simulated brokers in virtual time, by seeds.

See docs/design/testing.md.
"""
