"""The part of a plan that rolls out a revision."""
