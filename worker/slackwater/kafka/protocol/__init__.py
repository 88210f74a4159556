"""State machines of the client, without I/O, clock or randomness: requests out, responses in."""
