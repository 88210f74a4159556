"""Measurements against the peers at their best settings: `python -m benchmarks NAME`."""
