"""Snapshots of a group, its topics and its objects: one definition each."""
