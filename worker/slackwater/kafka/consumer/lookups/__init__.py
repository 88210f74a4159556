"""Requests that read cluster state."""
