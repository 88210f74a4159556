"""The checks of a preflight: whether a worker could run here."""
