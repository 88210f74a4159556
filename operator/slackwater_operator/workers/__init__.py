"""HTTP requests to the workers' pods."""
