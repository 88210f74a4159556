"""Handlers of the requests, one module per area of the Kafka API."""
