"""The sink `postgres`: a table of a PostgreSQL database."""
