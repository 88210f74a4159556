"""The same resource and the same decisions with processes of this machine in place of pods."""
