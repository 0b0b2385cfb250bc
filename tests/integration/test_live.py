"""sbus-live on a real bus and a real Spark: counters and alerts are exact through kills, and the baseline is that of a plain model."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sbus.protocol.errors import SbusError
from sbus_archive.pipeline.errors import PermanentError
from sbus_archive.pipeline.live.job import check_tap
from sbus_archive.pipeline.live.live_state import STATE, Decided, LiveState
from sbus_archive.pipeline.live.publication import publish_decided
from sbus_archive.pipeline.source.outbox import Outbox
from sbus_archive.pipeline.source.publisher import BusConnection
from tests.support.daemons import Daemon, StartDaemon
from tests.support.spark import JAVA_OPTIONS, require_spark
from tests.support.users import User
from tests.support.wire import RawClient
from tools.stage import ROOT

pytestmark = pytest.mark.machine

_SECONDS = 300
"""A start of Spark takes ten; a busy machine may need more."""

_KILLS = 2
"""The first kill is that of a job that began without a state, the second that of a job that has read one."""

_PROGRAM = [sys.executable, "-W", "error", "-c", "from sbus_archive.pipeline.live.main import main; main()"]

_TIMED_OUT = "Timed out while waiting for the Python worker to connect back"

_CLOCK = """
from pathlib import Path
from types import SimpleNamespace
import time
from sbus_archive.pipeline.live import job
from sbus_archive.pipeline.live.live_state import LiveState
close_minutes = LiveState.close
def close(self, *arguments):
    return 0 if Path("hold").exists() else close_minutes(self, *arguments)
def now():
    return max(time.time(), float(Path("now").read_text()) if Path("now").exists() else 0)
LiveState.close = close
job.time = SimpleNamespace(time=now)
"""
"""Lets the test choose when minutes end for the job, so that it waits for none: not while there is a file, and at another one's time."""

_SETTINGS = """
delay = "1s"
[[thresholds]]
name = "flood"
measure = "messages"
by = "prefix"
raise_at = 500
clear_at = 0
"""


class Job:
    """The program with its state in a folder; it can be killed and started again."""

    def __init__(
        self, folder: Path, bus: Daemon, settings: str = _SETTINGS, tables: Path | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.state_folder = folder / "state"
        (folder / "live.toml").write_text(settings)
        self.hook = ""
        """A program that runs before that of the job."""
        self._options = ["--address", bus.path, "--state", str(self.state_folder), "--tables", str(tables or folder / "none")]
        self._options += ["--config", str(folder / "live.toml")]
        self._variables = variables or {}
        """Variables of the program, more than those of :func:`environment`."""
        self.timeouts = 0
        """How often the program has ended because Spark waits only ten seconds for its workers; the service would be restarted."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> LiveState:
        """What is on disk."""
        return LiveState.load(self.state_folder)

    def start(self) -> None:
        """Start the program; return when it counts."""
        starts = self.state.counts["starts"] if self.state_folder.exists() else 0
        self._launch()
        self.wait(lambda state: state.counts["starts"] > starts, "the start of the job")

    def _launch(self) -> None:
        """Start the program."""
        words = [*_PROGRAM[:-1], "\n".join((self.hook, _CLOCK, _PROGRAM[-1])), *self._options]
        with (self.folder / "stderr").open("ab") as errors:
            env = {**environment(), **self._variables}
            self._process = subprocess.Popen(words, env=env, stderr=errors, start_new_session=True, cwd=self.folder)

    def wait(self, condition: Callable[[LiveState], bool], what: str) -> None:
        """Wait until the state on disk is as *condition* says."""
        deadline = time.monotonic() + _SECONDS
        while not (self.state_folder / STATE).exists() or not condition(self.state):
            assert self._process is not None
            if self._process.poll() == 1 and self.errors().count(_TIMED_OUT) > self.timeouts:
                self.timeouts += 1
                self._launch()
            assert self._process.poll() is None, self.errors()
            assert time.monotonic() < deadline, f"{what}: {self.errors()}"
            time.sleep(0.05)

    def hold(self) -> None:
        """Let no minute end for the job until :meth:`end_minutes`: what is counted after the end of its minute raises no alert."""
        (self.folder / "hold").touch()

    def end_minutes(self, later: int = 0) -> None:
        """Let all minutes end for the job that have begun, and *later* more, which are complete unless the job stops."""
        write_atomically(self.folder / "now", str((time.time() // 60 + 1 + later) * 60 + 1.5))
        (self.folder / "hold").unlink(missing_ok=True)

    def kill(self) -> None:
        """Kill the program with its Spark."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def errors(self) -> str:
        """Return what the program has written to standard error."""
        return (self.folder / "stderr").read_text()


def environment() -> dict[str, str]:
    """Return what the program needs, and no more."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), "SBUS_PIPELINE_JAVA_OPTIONS": JAVA_OPTIONS}


def publish(client: RawClient, key: bytes, count: int) -> None:
    """Publish *count* messages; return when the bus has routed them."""
    for number in range(count):
        client.publish(key, b"x")
        if number % 100 == 99:
            client.barrier()
    client.barrier()


def settle(job: Job, client: RawClient, name: str) -> None:
    """Return when the job counts, and has counted all that was published before."""
    for key in (f"probe-{name}/first", f"probe-{name}/last"):

        def is_counted(state: LiveState, key: str = key) -> bool:
            if counted(state, key):
                return True
            client.publish(key.encode(), b"")
            client.barrier()
            time.sleep(0.2)  # fewer in a minute than the threshold
            return False

        job.wait(is_counted, f"the count of {key}")


def write_atomically(file: Path, text: str) -> None:
    """Replace *file*, which the job reads at any time."""
    file.with_suffix(".new").write_text(text)
    file.with_suffix(".new").rename(file)


def counted(state: LiveState, prefix: str) -> int:
    """Return the messages of a prefix in all minutes."""
    return sum(minute.value("prefix", prefix, "messages") for minute in state.minutes.by_number.values())


def alerts_of(client: RawClient) -> list[dict[str, Any]]:
    """Return the alerts that *client* has received since the last call."""
    return [json.loads(packet.split(b"\0", 1)[1]) for packet in client.barrier() if packet.startswith(b"MSG alert/")]


@pytest.mark.timeout(1800)
def test_counters_and_alerts_are_exact_through_kills(daemon: StartDaemon, tmp_path: Path) -> None:
    """Each message is counted once, or counted as lost, or fell into an interruption; each alert that was decided arrives."""
    require_spark()
    bus = daemon()
    chance = random.Random(20)
    publisher, listener = bus.client(), bus.client()
    listener.subscribe(b"alert/")
    job = Job(tmp_path, bus)
    received = []
    try:
        for turn in range(_KILLS):
            job.start()
            settle(job, publisher, f"start{turn}")
            job.hold()
            # Also if a minute ends meanwhile, one of the two has enough.
            publish(publisher, b"flood/one/a", 1000)
            settle(job, publisher, f"end{turn}")
            assert counted(job.state, "flood/one") == 1000 * (turn + 1)
            job.end_minutes()
            # In the middle of this traffic the job is killed.
            publish(publisher, b"flood/two/b", 300)
            time.sleep(chance.random() * 2)
            job.kill()
            received += alerts_of(listener)
        job.start()
        settle(job, publisher, "last")
        state = job.state
        assert counted(state, "flood/one") == 1000 * _KILLS
        missing = 300 * _KILLS - counted(state, "flood/two")
        assert missing >= 0, "a message was counted twice"
        # What was lost with a batch is a number, and the rest fell into an interruption, one for each kill.
        assert missing <= state.counts["lost"] or state.counts["interruptions"]
        assert state.counts["starts"] == _KILLS + 1 + job.timeouts
        # Quiet, but complete minutes clear what was raised.
        job.end_minutes(3)
        job.wait(lambda state: bool(state.decided) and not state.raised and not state.pending, "the alerts are cleared")
        decided = job.state.decided
        received += alerts_of(listener)
        by_id = {alert["id"]: alert for alert in received}
        assert len(by_id) == decided
        assert len(received) - len(by_id) <= job.errors().count("published an alert again"), "a repeated alert is reported"
        changes: dict[str, list[str]] = {}
        for alert in sorted(by_id.values(), key=lambda each: str(each["minute"])):
            changes.setdefault(alert["subject"], []).append(alert["state"])
        assert changes["flood/one"]
        assert all(states == ["raised", "cleared"] * (len(states) // 2) for states in changes.values()), changes
        assert set(changes) <= {"flood/one", "flood/two"}
        shown = subprocess.run(
            [*_PROGRAM, "--show", "--state", str(job.state_folder)],
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
        )
        assert shown.stderr == ""
        assert any(line.startswith("flood/one ") for line in shown.stdout.splitlines()), shown.stdout
    finally:
        job.kill()


def test_only_the_user_of_the_job_publishes_alerts(daemon: StartDaemon, first_user: User, second_user: User) -> None:
    """With the rules of the package."""
    rules = (ROOT / "etc/sbusd.toml.d/50-live.toml").read_text()
    bus = daemon(config=rules.replace('"sbus-live"', str(first_user.uid)))
    reader = bus.client()
    reader.subscribe(b"alert/")
    of_job, other = bus.client(first_user), bus.client(second_user)
    of_job.publish(b"alert/flood/all", b"{}")
    other.publish(b"alert/flood/all", b"forged")
    assert [packet for packet in of_job.barrier() if packet.startswith(b"ERR")] == []
    assert any(b"EPERM" in packet or b"EACCES" in packet for packet in other.barrier())
    assert [packet for packet in reader.barrier() if b"alert/" in packet] == [b"MSG alert/flood/all\0{}"]


def test_the_rules_of_the_store_let_it_publish_alerts(daemon: StartDaemon, first_user: User, second_user: User) -> None:
    """With the rules of both packages, in their order."""
    texts = [(ROOT / "etc/sbusd.toml.d" / name).read_text() for name in ("45-store.toml", "50-live.toml")]
    users = {"sbus-store": first_user.uid, "sbus-live": 0}
    rules = re.sub(r'"(sbus-[a-z]+)"', lambda found: str(users[found[1]]), "\n".join(texts))
    bus = daemon(config=rules)
    of_store, other = bus.client(first_user), bus.client(second_user)
    of_store.publish(b"alert/flood/all", b"{}")
    other.publish(b"alert/flood/all", b"forged")
    assert [packet for packet in of_store.barrier() if packet.startswith(b"ERR")] == []
    assert any(b"EPERM" in packet or b"EACCES" in packet for packet in other.barrier())


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--show", "--state", "{folder}/none"], 1, "no counters. Start the job"),
        (["--config", "{folder}/none.toml"], 78, "none.toml"),
        (["--state", "{folder}/file"], 1, "not a directory. Name the directory of the counters with --state"),
        (["--check", "--config", "{folder}/bad.toml"], 78, "delay"),
        (["--state", "{folder}/damaged"], 78, "state.json: damaged file. Remove the file to begin with empty counters"),
        (["--show", "--state", "{folder}/damaged"], 78, "state.json: damaged file. Remove the file to begin with empty counters"),
    ],
)
def test_each_error_is_one_line(tmp_path: Path, words: list[str], status: int, says: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "bad.toml").write_text("delay = 0\n")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / STATE).touch()
    command = [*_PROGRAM, *(word.format(folder=tmp_path) for word in words)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=_SECONDS)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("sbus-live: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["java", "pyspark", "pyarrow", "deltalake"])
def test_a_missing_package_is_not_retried(tmp_path: Path, missing: str) -> None:
    """The service is not restarted after it: RestartPreventExitStatus=2 78."""
    require_spark()
    settings = environment()
    if missing == "java":
        settings |= {"PATH": "/nowhere", "JAVA_HOME": ""}
    else:
        (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError(name={missing!r})")
        settings["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    command = [*_PROGRAM, "--state", str(tmp_path / "state")]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False, timeout=_SECONDS)
    says = {
        "java": "sbus-live: Spark needs Java, but it is not installed. ",
        "pyspark": "sbus-live: PySpark is not installed. ",
        "pyarrow": "sbus-live: PyArrow is not installed. ",
        "deltalake": "sbus-live: deltalake is not installed. ",
    }
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (78, "", 1)
    assert done.stderr.startswith(says[missing])


def test_a_refused_tap_is_permanent_and_a_missing_bus_is_not(daemon: StartDaemon, tmp_path: Path, first_user: User) -> None:
    address = daemon().path
    check_tap(address)
    with pytest.raises(
        PermanentError, match=r"cannot tap the bus: EPERM .*\. Allow this user with tap under \[rights\] in sbusd\.toml\(5\)"
    ):
        first_user.call(lambda: check_tap(address))
    with pytest.raises((SbusError, OSError)) as caught:
        check_tap(str(tmp_path / "none"))
    assert not isinstance(caught.value, PermanentError)


def test_an_alert_that_the_bus_refuses_blocks_no_other(daemon: StartDaemon, tmp_path: Path) -> None:
    bus = daemon(config='[[policy]]\nkeys = "alert/refused/"\npublish = "deny"\n')
    reader = bus.client()
    reader.subscribe(b"alert/")
    decided = [Decided(number, f"alert/{name}/all", "{}") for number, name in enumerate(("a", "refused", "b", "refused", "c"), 1)]
    result = publish_decided(Outbox(tmp_path / "outbox", 1, "repeat"), "alerts-1", decided, lambda: BusConnection(bus.path))
    assert (result.last, len(result.refused), result.repeated, result.problem) == (5, 2, [], "")
    assert "EPERM" in result.refused[0]
    assert [packet for packet in reader.barrier() if b"alert/" in packet] == [b"MSG alert/%s/all\0{}" % name for name in (b"a", b"b", b"c")]
