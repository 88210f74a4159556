"""One turn of a group: gather what is, decide what to do, do it in order."""
