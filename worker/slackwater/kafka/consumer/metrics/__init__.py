"""The consumer's metrics."""
