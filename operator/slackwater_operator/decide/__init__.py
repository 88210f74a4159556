"""Decisions about a group: pure functions from what was observed to what to do, each with its reason.

No I/O, no clock, no kopf: the time comes in with the observation. docs/design/decisions.md has the formulas.
"""
