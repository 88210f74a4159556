"""Stands by for a takeover of a membership."""
