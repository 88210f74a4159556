"""``slackwater.testing`` in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def test_the_package_loads_neither_arrow_nor_spark() -> None:
    code = "import sys, slackwater.testing; print([m for m in ('pyarrow', 'pyspark') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
