"""Alerts in a stored stream: exactly once, however often the publishing process, the program or the store is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from sbus import Bus
from sbus.store.items import StoredMessage
from sbus_archive.pipeline.live.alerts import Alert
from sbus_archive.pipeline.live.baseline import weeks_before
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.tables.hours import Hour
from tests.integration.test_live import Job, alerts_of, counted, environment, publish, settle
from tests.support.daemons import StartDaemon
from tests.support.published_tables import publish_record
from tests.support.records import message
from tests.support.spark import INTERPRETED, require_spark
from tests.support.store_programs import BUS_RIGHTS, StoreProgram

pytestmark = pytest.mark.machine

_SECONDS = 300

_ALERTS = 120

_INTERPRETED = {"PYSPARK_SUBMIT_ARGS": INTERPRETED}
"""For jobs of which the alerts count; test_live.py has the settings of the program."""

_STREAM = '[[stream]]\nname = "alerts"\nkeys = ["alert/"]\n'

_HOOK = """
import os, random, signal, sys, threading, time
from sbus_archive.pipeline.live import publication
publication.WAIT_SECONDS = 600.0
real = publication.AlertConnection.__call__
calls = 0
def kill():
    os.killpg(0, signal.SIGKILL)
def call(self, messages):
    global calls
    calls += 1
    if how == "random" and calls == 1:
        threading.Timer(delay, kill).start()
    real(self, messages)
    if how == "between" and calls == int(delay):
        kill()
publication.AlertConnection.__call__ = call
"""
"""Kills the process at a moment that the test chooses: between the publication of an alert and its note, or after a delay."""

_PUBLISHER = """
import json
import os
from pathlib import Path
from sbus_archive.pipeline.live.publication import publish_decided
from sbus_archive.pipeline.live.live_state import Decided
from sbus_archive.pipeline.source.outbox import Outbox
folder, address, how, delay = Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
decided = [Decided(*each) for each in json.loads((folder / "decided.json").read_bytes())]
publisher = publication.AlertPublisher(address, had_store=True)
while decided:
    result = publish_decided(Outbox(folder / "outbox", 1, "repeat"), "s", decided, publisher.connect, lambda: publisher.is_repeat_harmless)
    decided = [each for each in decided if each.number > result.last]
    assert not result.repeated and not result.refused and not publisher.not_stored, (result, publisher)
    time.sleep(0.05)
"""
"""Publishes the alerts of a file; what was published before a kill, it learns from the outbox alone."""


def run(folder: Path, address: str, how: str, delay: float) -> int:
    """Run the publishing process; return its status."""
    command = [sys.executable, "-W", "error", "-c", _HOOK + _PUBLISHER, str(folder), address, how, str(delay)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=_SECONDS, start_new_session=True)
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode


def stored_ids(address: str) -> list[str]:
    """Return the ids of the alerts in the stream."""
    with Bus.connect(address) as bus:
        found = list(bus.store.read("alerts", follow=False))
    return [json.loads(item.payload)["id"] for item in found if isinstance(item, StoredMessage)]


def write_decided(folder: Path) -> list[str]:
    """Write the alerts that are to be published; return their ids."""
    minute = int(time.time() // 60)
    alerts = [Alert("flood", f"a/{number}", True, "messages", number, 1, minute) for number in range(1, _ALERTS + 1)]
    decided = [(number, each.key().decode(), each.payload("h").decode()) for number, each in enumerate(alerts, 1)]
    (folder / "decided.json").write_text(json.dumps(decided))
    return [json.loads(payload)["id"] for _, _, payload in decided]


def test_each_alert_is_received_once_through_kills_of_the_publisher(daemon: StartDaemon, tmp_path: Path) -> None:
    bus = daemon(config=BUS_RIGHTS)
    chance = random.Random(6)
    with StoreProgram(tmp_path, bus.path, _STREAM):
        reader = bus.client()
        reader.subscribe(b"alert/")
        ids = write_decided(tmp_path)
        received = []
        for turn in range(6):
            # After the first, second and third publication, and at random moments in between.
            how, delay = ("between", 1 + turn // 2) if turn % 2 else ("random", chance.random() * 0.02)
            assert run(tmp_path, bus.path, how, delay) == -signal.SIGKILL
            received += alerts_of(reader)
        assert run(tmp_path, bus.path, "never", 0) == 0
        received += alerts_of(reader)
        assert stored_ids(bus.path) == ids
        assert [each["id"] for each in received] == ids, "also a plain subscriber gets each alert once"


def test_each_alert_is_stored_once_through_kills_of_the_store(daemon: StartDaemon, tmp_path: Path) -> None:
    bus = daemon(config=BUS_RIGHTS)
    chance = random.Random(8)
    with StoreProgram(tmp_path, bus.path, _STREAM) as store:
        ids = write_decided(tmp_path)
        command = [sys.executable, "-W", "error", "-c", _HOOK + _PUBLISHER, str(tmp_path), bus.path, "never", "0"]
        with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as publisher:
            try:
                for _ in range(3):
                    time.sleep(chance.random() / 2)
                    assert store.process is not None
                    store.process.kill()
                    store.process.wait()
                    store.start()
                _, errors = publisher.communicate(timeout=_SECONDS)
                assert publisher.returncode == 0, errors
            finally:
                publisher.kill()
        assert stored_ids(bus.path) == ids


@pytest.mark.timeout(1800)
def test_an_unusual_number_of_messages_raises_an_alert(daemon: StartDaemon, tmp_path: Path) -> None:
    """Three weeks of tables have 10 messages a minute of two prefixes. Now one of them has 1200, and the other 300."""
    require_spark()
    now = time.time_ns()
    # The next hour too, because the minute of the traffic may be in it.
    hours = {hour for ahead in (0, HOUR_NS) for hour in weeks_before(Hour.at(now + ahead), 3)}
    moments = sorted(hour.start + minute * 60 * 10**9 for hour in hours for minute in range(60))
    keys = [(moment, key) for moment in moments for key in ("many/a/x", "usual/b/x") for _ in range(10)]
    record = [message(number, key, ts=moment + number) for number, (moment, key) in enumerate(keys)]
    tables = publish_record(tmp_path, {socket.gethostname(): record})
    bus = daemon()
    publisher, reader = bus.client(), bus.client()
    reader.subscribe(b"alert/")
    job = Job(tmp_path, bus, 'delay = "1s"\n[anomaly]\nmin_weeks = 3\nmin_difference = 400\n', tables, _INTERPRETED)
    try:
        job.start()
        settle(job, publisher, "first")
        job.hold()
        publish(publisher, b"usual/b/x", 300)
        publish(publisher, b"many/a/x", 1200)
        settle(job, publisher, "last")
        # Quiet, but complete minutes clear the alert.
        job.end_minutes(3)
        job.wait(lambda state: bool(state.decided) and not state.raised and not state.pending, "the alert is cleared")
        received = alerts_of(reader)
        assert {each["subject"] for each in received} == {"many/a"}
        assert {each["rule"] for each in received} == {"anomaly"}
        assert [each["state"] for each in received] == ["raised", "cleared"]
        assert 410 < received[0]["value"] <= 1200
        assert "no alerts for anomalies" not in job.errors()
        # This bus has no store.
        assert (job.state.counts["alerts_stored"], job.state.counts["alerts_not_stored"]) == (0, 2)
        assert job.errors().count("alerts are published, but not stored, so a kill may repeat one") == 1
    finally:
        job.kill()


@pytest.mark.timeout(1800)
def test_the_program_stores_each_alert_once(daemon: StartDaemon, tmp_path: Path) -> None:
    """The program is killed between the publication of an alert and its note, and publishes it again after its start."""
    require_spark()
    bus = daemon(config=BUS_RIGHTS)
    with StoreProgram(tmp_path, bus.path, _STREAM):
        publisher, reader = bus.client(), bus.client()
        reader.subscribe(b"alert/")
        job = Job(tmp_path, bus, variables=_INTERPRETED)
        job.hook = f'how, delay = "between", 1.0\n{_HOOK}'
        try:
            job.start()
            settle(job, publisher, "first")
            job.hold()
            # Also if a minute ends meanwhile, one of the two has enough.
            publish(publisher, b"flood/one/a", 1200)
            job.wait(lambda state: counted(state, "flood/one") == 1200, "the count")
            job.end_minutes()
            assert job._process is not None
            # It is killed when it has published that the alert is raised.
            assert job._process.wait(_SECONDS) == -signal.SIGKILL
            assert len(job.state.pending) == 1
            assert (job.state.counts["alerts_stored"], len(stored_ids(bus.path))) == (0, 1)
            job.hook = ""
            job.start()
            job.end_minutes(3)
            job.wait(lambda state: not state.raised and not state.pending, "the alert is cleared")
            found, received = stored_ids(bus.path), alerts_of(reader)
            assert Counter(found) == Counter(each["id"] for each in received)
            assert max(Counter(found).values()) == 1
            assert [each["state"] for each in received] == ["raised", "cleared"] * (len(received) // 2)
            assert len(found) == job.state.decided == job.state.counts["alerts_stored"]
            assert "published an alert again" not in job.errors()
            assert "not stored" not in job.errors()
        finally:
            job.kill()


@pytest.mark.timeout(1800)
def test_no_alert_is_missing_after_a_kill_of_java(daemon: StartDaemon, tmp_path: Path) -> None:
    """The program ends with an error, and systemd starts it again."""
    require_spark()
    bus = daemon(config=BUS_RIGHTS)
    with StoreProgram(tmp_path, bus.path, _STREAM):
        publisher, reader = bus.client(), bus.client()
        reader.subscribe(b"alert/")
        job = Job(tmp_path, bus, variables=_INTERPRETED)
        try:
            job.start()
            settle(job, publisher, "first")
            job.hold()
            publish(publisher, b"flood/one/a", 1200)
            settle(job, publisher, "last")
            assert job._process is not None
            os.kill(java_of(job._process.pid), signal.SIGKILL)
            assert job._process.wait(_SECONDS) == 1
            job.start()
            job.end_minutes(3)
            job.wait(lambda state: bool(state.decided) and not state.raised and not state.pending, "the alert is cleared")
            received = alerts_of(reader)
            assert [each["state"] for each in received] == ["raised", "cleared"]
            assert stored_ids(bus.path) == [each["id"] for each in received]
        finally:
            job.kill()


def java_of(group: int) -> int:
    """Return the process id of Java in a process group."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text() == "java\n" and os.getpgid(int(path.parent.name)) == group:
                return int(path.parent.name)
        except OSError:
            # The process has ended since.
            continue
    raise AssertionError(f"process group {group} has no Java")
