"""The sinks that store the rows of a handler."""
