"""The version of Slackwater: of both distributions, the chart and the images.

``python -m tools.version`` writes it wherever else it has to stand, and tests compare them.
"""

from __future__ import annotations

VERSION = "0.1.0"
