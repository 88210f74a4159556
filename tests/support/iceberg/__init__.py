"""Iceberg tables for tests: a reader of their files, catalogs, and Iceberg's own REST catalog."""
