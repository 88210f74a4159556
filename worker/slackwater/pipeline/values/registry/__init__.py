"""A schema registry with Confluent's REST API, and the wire format of values that refer to it."""
