"""From a polled batch to committed offsets."""
