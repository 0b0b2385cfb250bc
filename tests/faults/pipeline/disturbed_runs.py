"""Runs of the pipeline over a fleet that records and ships, while processes are killed and the object store fails.

In the end the tables must be those that plain Python computes from the rows of the hosts.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.faults.pipeline.fleet import Fleet
from tests.support.object_stores import BUCKET, FAULTS, FaultyProxy, ObjectServer
from tests.support.spark import INTERPRETED, JAVA_OPTIONS, manifests, published
from tests.support.tallies import tables_of
from tools.stage import ROOT

_SECONDS = 600
"""Limit of one run; it takes 20 seconds on a quiet machine."""

_ATTEMPTS = 5
"""Maximum number of runs without disturbances until one succeeds: the first ones may find what a killed Spark still writes."""

CONVERSION_SECONDS = 1.5
"""For about how long the recorder converts what is new for one run."""

TARGETS = ("nothing", "driver", "java", "group", "executor", "shipper", "conversion", "outage")
"""What is disturbed in one run. The group is driver and Java together."""

TABLES = "tables"

_SIGNS = {"java": b"SparkSubmit", "executor": b"CoarseGrainedExecutorBackend"}
"""What the command lines of processes contain that the program starts."""


class DisturbedRuns:
    """A scenario of *runs* runs. Everything random comes from *seed*: also what is disturbed, after the first of *targets*."""

    def __init__(self, folder: Path, seed: int, runs: int, rows: int, *, targets: Sequence[str] = (), typical: float = 15.0) -> None:
        self.counts: Counter[str] = Counter()
        """What happened, by name."""
        self._folder = folder
        self._chance = random.Random(seed)
        self._runs = runs
        self._targets = [*targets]
        self._fleet = Fleet(folder, self._chance, rows)
        self._was_killed = False
        self._typical = typical
        """How long a run that succeeded took, in seconds."""

    def run(self) -> None:
        """Run the scenario. Raises AssertionError if the tables differ, or a program ends in a way that no disturbance explains."""
        with (
            ObjectServer(self._folder) as server,
            FaultyProxy(server.port, seed=self._chance.randrange(1 << 30), faults=(*FAULTS, "stale")) as proxy,
        ):
            try:
                # An archive without an index is an error.
                self._fleet.advance(1 / (self._runs + 1), proxy.environment())
                self._fleet.finish(proxy.environment())
                for number in range(1, self._runs + 1):
                    self._fleet.advance((number + 1) / (self._runs + 1), proxy.environment())
                    self._disturbed(number, proxy)
            finally:
                self._fleet.stop()
            proxy.chance = 0.0
            self._fleet.finish(proxy.environment())
            self._settle(proxy.environment())
            self.counts.update({f"requests: {name}": count for name, count in proxy.made.items()})
        self._compare()

    def _compare(self) -> None:
        """Compare the tables. Raises AssertionError."""
        found = published(self._folder / TABLES)
        for name, lines in tables_of(self._fleet.record).items():
            assert found[name] == lines, f"{name} differs from the rows of the hosts"
        left = [each for each in manifests(self._folder / TABLES) if each.absent or each.left_out or each.removed]
        assert not left

    def _disturbed(self, number: int, proxy: FaultyProxy) -> None:
        """Run once, and disturb the run at a random moment."""
        is_on_cluster = number % 5 == 0
        target = "executor" if is_on_cluster else self._chance.choice([each for each in TARGETS if each != "executor"])
        if self._targets:
            target = self._targets.pop(0)
        proxy.chance = self._chance.choice((0.0, 0.0, 0.02, 0.1))
        is_faulty = proxy.chance > 0 or target == "outage"
        self._note("object store with faults" if proxy.chance else "object store without faults")
        process = self._start(proxy.environment(), is_on_cluster=is_on_cluster)
        begun = time.monotonic()
        # The recorder converts for a moment only, when it has new rows.
        longest = CONVERSION_SECONDS if target == "conversion" else self._typical * (2.5 if is_on_cluster else 1.2)
        moment = begun + self._chance.random() * longest
        while process.poll() is None and (time.monotonic() < moment or not _is_there(target, process.pid)):
            time.sleep(0.05)
        is_killed = self._disturb(target, process, proxy)
        said, _ = process.communicate(timeout=_SECONDS)
        proxy.chance = 0.0
        assert "Traceback" not in said, said
        if process.returncode == 0:
            self._note("runs that succeeded")
            if not is_on_cluster and target == "nothing":
                self._typical = min(60.0, time.monotonic() - begun)
        else:
            self._note("runs that were killed" if is_killed else "runs that failed")
            # What a killed run has left can stop the next one.
            assert is_killed or is_faulty or self._was_killed, said
        self._was_killed = is_killed
        print(f"run {number}: {target}, status {process.returncode}, {time.monotonic() - begun:.0f} s", flush=True)

    def _disturb(self, target: str, process: subprocess.Popen[str], proxy: FaultyProxy) -> bool:
        """Disturb *target*; return whether the run was killed, wholly or in part."""
        if target == "outage":
            before, proxy.chance = proxy.chance, 1.0
            self._note(target)
            time.sleep(self._chance.uniform(0.5, 4.0))
            proxy.chance = before
            return False
        if target in ("shipper", "conversion"):
            if self._fleet.kill(target):
                self._note(f"killed {target}")
            return False
        if target == "nothing" or process.poll() is not None:
            return False
        if target == "driver":
            process.kill()
        elif target == "group":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            found = _members(process.pid, _SIGNS[target])
            if not found:
                return False
            for pid in self._chance.sample(found, 1):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._note(f"killed {target}")
        return True

    def _settle(self, environment: Mapping[str, str]) -> None:
        """Run without disturbances until nothing is new. Raises AssertionError."""
        said = ""
        for _ in range(_ATTEMPTS):
            process = self._start(environment, is_on_cluster=False)
            said, _ = process.communicate(timeout=_SECONDS)
            if process.returncode == 0 and "nothing new" in said:
                return
        raise AssertionError(f"runs without disturbances do not succeed: {said}")

    def _start(self, environment: Mapping[str, str], *, is_on_cluster: bool) -> subprocess.Popen[str]:
        """Start the pipeline in a session of its own."""
        program = [
            sys.executable,
            "-m",
            "sbus_archive.pipeline",
            "--archive",
            f"s3://{BUCKET}/fleet",
            "--tables",
            str(self._folder / TABLES),
        ]
        options = list[str]()
        if is_on_cluster:
            program += ["--master", "local-cluster[2,1,1024]"]
            options += ["--conf=spark.executor.memory=600m", f"--conf=spark.executor.extraJavaOptions={JAVA_OPTIONS}"]
        kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
        own = {
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SBUS_PIPELINE_JAVA_OPTIONS": JAVA_OPTIONS,
            "PYSPARK_SUBMIT_ARGS": f"{shlex.join(options)} {INTERPRETED}",
        }
        return subprocess.Popen(
            program,
            env={**kept, **own, **environment},
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _note(self, what: str) -> None:
        """Count *what*."""
        self.counts[what] += 1


def _is_there(target: str, session: int) -> bool:
    """Return whether *target* can be disturbed."""
    return target not in _SIGNS or bool(_members(session, _SIGNS[target]))


def _members(session: int, sign: bytes) -> list[int]:
    """Return the processes of a session whose command line contains *sign*."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[3]) == session and sign in path.with_name("cmdline").read_bytes():
                found.append(int(path.parent.name))
    return sorted(found)
