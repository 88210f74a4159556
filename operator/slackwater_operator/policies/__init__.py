"""Pure decisions about a group: from observations to what to do, each with its reason."""
