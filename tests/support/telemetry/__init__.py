"""Telemetry that tests receive or keep: an OTLP receiver, and traces in memory."""
