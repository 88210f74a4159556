"""Builds the snapshot that the planner works on."""
