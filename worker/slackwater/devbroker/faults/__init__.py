"""Faults that tests inject: rules that match requests, and the error responses of each API."""
