"""How members move from one StatefulSet to another by takeover."""
