"""Takes snapshots, plans and executes plans, for all groups."""
