"""Hands a member over from a predecessor to a successor."""
