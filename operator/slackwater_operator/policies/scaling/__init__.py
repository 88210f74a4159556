"""How many workers a group needs."""
