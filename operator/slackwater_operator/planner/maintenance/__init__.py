"""The maintenance of tables that spec.maintenance asks for."""
