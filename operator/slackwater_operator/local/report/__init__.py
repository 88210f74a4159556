"""What happened in a run, from its workers' events: generations, returns, reports and snapshots."""
