"""Whatever system call of the compiled switch fails, at whatever point: no crash, no wrong delivery, and the books balance."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.run import ERRORS
from tests.faults.shim import CALLS, build_shim
from tools.stage import ROOT

END_SECONDS = 540
"""When a run that does not end is a failure, on a machine however slow."""

ONE_IN = int(os.environ.get("SBUS_FAULTS_ONE_IN", "4"))
"""Every how many faults one is tried; ``make faults`` tries all. Each call fails at each point, with one or two errors of seven."""

FEWEST_FAULTS = {
    "recvmmsg": 300,
    "sendmmsg": 400,
    "send": 150,
    "recv": 40,
    "accept4": 300,
    "epoll_ctl": 400,
    "epoll_wait": 1_000,
    "setsockopt": 100,
    "open": 20,
    "poll": 7,
    "shutdown": 80,
    "epoll_create1": 7,
    "madvise": 7,
}
"""Faults of each call that the scenario must come to: so that it cannot wither unseen."""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library."""
    return build_shim(tmp_path_factory.mktemp("shim"))


def run_under(shim: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the library in front of the C library, behind what is there already: a sanitizer wants to be first."""
    preloaded = [name for name in (os.environ.get("LD_PRELOAD"), str(shim)) if name]
    env = os.environ | {"LD_PRELOAD": ":".join(preloaded)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=END_SECONDS)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_may_fail_at_any_time(call: str, shim: Path) -> None:
    done = run_under(shim, "-m", "tests.faults.run", call, f"--one-in={ONE_IN}")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-4_000:]
    counts = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines())
    assert all(int(counts[f"{call} {errno.errorcode[error]} calm"]) >= 1 for error in ERRORS)
    assert sum(map(int, counts.values())) >= FEWEST_FAULTS[call] // ONE_IN


BROKEN = """
import errno, os, sys
from tests.faults import scenario
from tests.faults.shim import Fault, Shim

class Deaf(scenario.FaultHarness):
    def {method}(self, *arguments):
        {body}
        return super().{method}(*arguments)

scenario.FaultHarness = Deaf
shim = Shim(os.environ["LD_PRELOAD"].split(":")[-1])
scenario.play(shim, {faults}, 0)
"""


@pytest.mark.parametrize(
    ("override", "faults", "complaint"),
    [
        # A switch that gives a message to another, or to none, forgets a loss, or lets a descriptor stay open.
        (("control", "self.switch.send(arguments[0], b'MSG t/a stray')"), "()", "instead of"),
        (("control", "if b'SUB *' in arguments: return None"), "()", "packets are missing"),
        (("lost", "return None"), "()", "lost =="),
        (("connected", "os.dup(0)"), "()", "descriptors leak"),
        # A connection that ends though none may, and a fault that no call meets.
        (("connected", ""), "(Fault('send', errno.EPIPE, 1),)", "ended for nothing"),
        (("connected", ""), "(Fault('send', errno.EPIPE, 1_000_000),)", "never happened"),
    ],
)
def test_violations_are_detected(shim: Path, override: tuple[str, str], faults: str, complaint: str) -> None:
    """Else a scenario that checks nothing would pass."""
    done = run_under(shim, "-c", BROKEN.format(method=override[0], body=override[1], faults=faults))
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
    assert complaint in done.stderr


def test_the_scenario_loses_packets_and_fills_queues(shim: Path) -> None:
    """Without any fault it goes through the states in which a fault could do harm."""
    code = (
        "import os\nfrom tests.faults import scenario\nfrom tests.faults.shim import Shim\n"
        "shim = Shim(os.environ['LD_PRELOAD'].split(':')[-1])\n"
        "with scenario.open_listener() as listener:\n"
        "    life = scenario.Scenario(shim, listener)\n    life.run_all()\n"
        "    count = life.harness.switch.counters()\n    braked = life.harness.switch.connection_counters(life.all['brake'].number)\n"
        "    life.close()\n"
        "reported = sum(line[0] == 'lost' for line in life.harness.events)\n"
        "print(count.lost_packets, count.refused_packets, count.deliveries, reported, braked.delivered_packets, braked.lost_packets)\n"
    )
    done = run_under(shim, "-c", code)
    lost, refused, deliveries, reported, *braked = map(int, done.stdout.split())
    assert lost >= 10
    assert refused == 1
    assert deliveries >= 150
    assert reported >= 2
    assert braked == [40, 0]  # its socket takes a dozen
