"""The worker's metrics, status, events and HTTP endpoints."""
