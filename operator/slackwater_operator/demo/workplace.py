"""Where the demo keeps what: a folder of its own, emptied by each run once its broker serves."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from slackwater_operator.local.workfolder import WorkFolder


class Workplace:
    """The demo's folder and the places in it."""

    def __init__(self, folder: Path) -> None:
        self.work = WorkFolder(folder, "demo", elsewhere="run the demo in another folder")
        self.logs = folder / "logs"
        self.output = folder / "flights"
        self.report = folder / "report.json"
        self.broker = folder / f"broker-{uuid4().hex[:8]}"
        """The dev broker's data and logs, new for each run: it starts before the old ones are removed."""

    def empty(self) -> None:
        """Removes what the last run has left. Raises WorkFolderError."""
        self.work.empty(keep=[self.broker])
