"""Fetches records ahead of the application."""
