"""The operator's metrics, logs and HTTP endpoints."""
