"""The sink `iceberg`: an Apache Iceberg table in a catalog."""
