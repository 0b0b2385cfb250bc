"""The event log of Spark: how many rows each task of each stage has read."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class StageWork:
    """Rows that the tasks of a stage have read: from files (or stored rows), and from other stages."""

    files: list[int] = field(default_factory=list)
    exchanged: list[int] = field(default_factory=list)
    pool: str | None = None

    @property
    def rows(self) -> list[int]:
        """The rows of each task."""
        return [own + others for own, others in zip(self.files, self.exchanged, strict=True)]


def log_options(folder: Path) -> list[str]:
    """Return the options of Spark that write the log of one application into *folder*."""
    settings = {"enabled": "true", "dir": folder.as_uri(), "compress": "false", "rolling.enabled": "false"}
    return [word for name, value in settings.items() for word in ("--conf", f"spark.eventLog.{name}={value}")]


def stages_in(folder: Path) -> dict[int, StageWork]:
    """Return the work of each stage, by its number, from the one log in *folder*."""
    (log,) = folder.iterdir()
    found: defaultdict[int, StageWork] = defaultdict(StageWork)
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerStageSubmitted":
            found[event["Stage Info"]["Stage ID"]].pool = (event.get("Properties") or {}).get("spark.scheduler.pool")
        elif event["Event"] == "SparkListenerTaskEnd" and (metrics := event.get("Task Metrics")) is not None:
            work = found[event["Stage ID"]]
            work.files.append(metrics["Input Metrics"]["Records Read"])
            work.exchanged.append(metrics["Shuffle Read Metrics"]["Total Records Read"])
    return dict(found)
