"""How workers are restarted, admitted to the group and removed from it."""
