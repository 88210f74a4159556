"""The sink `delta`: a Delta Lake table."""
