"""TLS and SASL: how a client authenticates."""
