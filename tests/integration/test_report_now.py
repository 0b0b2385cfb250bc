"""``sbusctl report --now``: one command from the traffic of the last seconds to the page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sbus_archive.pipeline import main as pipeline
from sbus_archive.recorder import segment_closing
from sbusctl.fresh_tables import ARCHIVE, COMMAND, PIPELINE, RECORDER, TABLES
from tests.integration.test_pipeline_program import environment
from tests.integration.test_recorder import Service
from tests.support.daemons import Daemon, StartDaemon
from tests.support.published_tables import publish_record_at
from tests.support.records import message
from tests.support.relays import wait_for
from tests.support.spark import INTERPRETED, require_spark
from tests.support.traffic import deliver
from tests.support.users import User
from tools.stage import ROOT, Stage

pytestmark = pytest.mark.machine

_SECONDS = 300.0


def report(bus: Daemon, folder: Path, archive: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run it as root, with the tables in *folder*."""
    options = ["--address", bus.path, "--json=short", "report", "--now", "--archive", str(archive), "--tables", "tables", "-o", "page.html"]
    command = [sys.executable, "-m", "sbusctl.main", *options]
    env = environment(PYSPARK_SUBMIT_ARGS=INTERPRETED, **more)
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=_SECONDS)


def test_messages_of_the_last_seconds_are_on_the_page(daemon: StartDaemon, folder: Path, stage: Stage, first_user: User) -> None:
    require_spark()
    bus = daemon(config=f"[rights]\ntap = {{ users = [{first_user.uid}] }}\n")
    service = Service(folder, stage, first_user, bus.path)
    try:
        service.wait_ready()
        client = bus.client()
        wait_for(lambda: b"rpc/recorder/close" in client.ask(b"!/bus/subscriptions") or None, "the service", _SECONDS)
        (folder / "page.html").write_text("an earlier page")
        publish_record_at(folder / "tables", folder / "earlier", {"alpha": [message(1, "earlier/1")]})
        for number in range(5):
            client.publish(b"part/1", b"%d" % number)
        client.barrier()
        done = report(bus, folder, service.folder / "archive")
        assert (done.returncode, done.stderr) == (0, "")
        said = json.loads(done.stdout)
        assert said["file"] == "page.html"
        page = (folder / "page.html").read_text()
        assert ("part/1" in page, "earlier/1" in page) == (True, True)  # tables that exist are updated
    finally:
        service.close()


def test_a_program_that_fails_is_reported_below_its_message(bus: Daemon, folder: Path) -> None:
    deliver(folder / "archive", "alpha", [message(1)])
    done = report(bus, folder, folder / "archive", PATH="/nowhere", JAVA_HOME="")
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("sbus-pipeline: Spark needs Java, but it is not installed. Install Java 17 or later (Debian: ")
    assert second.startswith("sbusctl: sbus-pipeline failed after ")
    assert not (folder / "page.html").exists()


def test_the_names_are_those_of_the_programs() -> None:
    """sbusctl may not import the pipeline."""
    assert (pipeline.ARCHIVE, pipeline.TABLES) == (ARCHIVE, TABLES)
    assert segment_closing.COMMAND == COMMAND
    assert all((ROOT / "units" / "system" / name).exists() for name in (RECORDER, PIPELINE))
