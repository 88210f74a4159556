"""Connections to clients: frames, requests in order, routing, and the request log."""
