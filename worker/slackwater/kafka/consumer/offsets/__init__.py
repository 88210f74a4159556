"""Positions and committed offsets."""
