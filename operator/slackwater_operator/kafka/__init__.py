"""Observes Kafka clusters: many groups at once."""
