"""`slackwater demo`: the main job on one machine, with its proof."""
