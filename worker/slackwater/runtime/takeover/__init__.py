"""Hands a group membership over from one pod to another."""
