"""The engines that run a user's handler: ``spark``, ``arrow`` and ``python``."""
