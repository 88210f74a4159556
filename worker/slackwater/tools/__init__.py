"""What the commands that work beside a group share: its settings, positions in a log, dead letters."""
