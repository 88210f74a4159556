"""The worker's configuration file."""
