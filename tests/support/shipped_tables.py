"""The tables of an archive that sbus-ship has copied to an object store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.object_stores import BUCKET, ObjectServer
from tests.support.object_stores import environment as store_environment
from tests.support.spark import INTERPRETED, JAVA_OPTIONS, published
from tests.support.tallies import Lines
from tools.stage import ROOT

_SECONDS = 600


def tables_through_an_object_store(folder: Path) -> dict[str, Lines]:
    """Return the tables that the pipeline makes of the archive of the host alpha in *folder*, after it was copied to an object store."""
    settings = {"destination": f"s3://{BUCKET}/truth", "archive": str(folder / "archive"), "host": "alpha", "state": str(folder / "ship")}
    config = folder / "ship.toml"
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
    with ObjectServer(folder) as server:
        env = {**kept, "PYTHONPATH": str(ROOT), "SBUS_PIPELINE_JAVA_OPTIONS": JAVA_OPTIONS, "PYSPARK_SUBMIT_ARGS": INTERPRETED}
        env |= store_environment(server.port)
        ship = [sys.executable, "-m", "sbus_archive.shipping.main", "--config", str(config), "--once"]
        tables = ["--archive", settings["destination"], "--tables", str(folder / "remote")]
        for words in (ship, [sys.executable, "-m", "sbus_archive.pipeline", *tables]):
            done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=folder)
            assert done.returncode == 0, done.stderr
    return published(folder / "remote")
