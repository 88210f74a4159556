"""On the PYTHONPATH of a worker: appends a line to the file that ``PROFILED`` names after each batch.

It is a JSON list of the worker's files whose functions were called since the batch before.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType

files: set[str] = set()


def profile(frame: FrameType, event: str, argument: object) -> None:
    """Notes the file of the function that is called."""
    code = frame.f_code
    _, found, name = code.co_filename.rpartition("/worker/slackwater/")
    if found:
        files.add(name)
    if code.co_qualname == "Delivery.batch_ended" and event == "return":
        with Path(os.environ["PROFILED"]).open("a", encoding="utf-8") as output:
            print(json.dumps(sorted(files)), file=output)
        files.clear()


threading.setprofile(profile)
sys.setprofile(profile)
