"""A consumer's options."""
