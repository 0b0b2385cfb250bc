"""Slow calls on a real bus raise an alert; that those of Spark are those of a plain model is in spark/test_live_sums.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sbus import Bus
from tests.integration.test_live import _PROGRAM, Job, alerts_of, environment, settle
from tests.support.daemons import StartDaemon
from tests.support.spark import require_spark

pytestmark = pytest.mark.machine

_SETTINGS = """
delay = "1s"
slow_call = "500ms"
[[thresholds]]
name = "slow"
measure = "slow"
by = "prefix"
raise_at = 2
"""

_SERVICE = """
import sys, time
from sbus import Bus
with Bus.connect(sys.argv[1]) as bus:
    @bus.service("task/run")
    def run(request):
        time.sleep(float(request.data))
        return b"done"
    bus.serve(ready=lambda: print("ready", flush=True))
"""


def test_slow_calls_on_a_bus_raise_an_alert(daemon: StartDaemon, tmp_path: Path) -> None:
    require_spark()
    bus = daemon()
    listener, publisher = bus.client(), bus.client()
    listener.subscribe(b"alert/")
    job = Job(tmp_path, bus, _SETTINGS)
    command = [sys.executable, "-c", _SERVICE, bus.path]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as service, Bus.connect(bus.path) as caller:
        try:
            assert service.stdout is not None
            assert service.stdout.readline() == "ready\n"
            job.start()
            settle(job, publisher, "start")
            job.hold()
            # Also if a minute ends meanwhile, two of the slow calls are in the same.
            for pause in (b"0", b"0.7", b"0.7", b"0.7"):
                assert caller.call("task/run", pause, timeout=60) == b"done"
            settle(job, publisher, "end")
            job.end_minutes()
            job.wait(lambda state: bool(state.decided) and not state.pending, "the alert")
            received = alerts_of(listener)
            (alert, *_) = received
            assert (alert["rule"], alert["subject"], alert["measure"], alert["state"]) == ("slow", "rpc/task", "slow", "raised")
            assert job.state.counts["calls_dropped"] == 0
            show = [*_PROGRAM, "--show", "--state", str(job.state_folder)]
            shown = subprocess.run(show, env=environment(), capture_output=True, text=True, check=True, timeout=300)
            (row,) = [line for line in shown.stdout.splitlines() if line.startswith("rpc/task ")]
            assert int(row.split()[-1]) >= 2
            assert max(map(len, shown.stdout.splitlines())) <= 80
        finally:
            service.kill()
            job.kill()
