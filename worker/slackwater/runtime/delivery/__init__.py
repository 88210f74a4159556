"""Delivers records: from a polled batch to committed offsets."""
