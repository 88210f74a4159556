"""Rows of one group in several tables: which row goes to which, and how far each table is."""
