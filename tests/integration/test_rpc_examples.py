"""The examples of sbus-rpc(7), taken from the page as they stand, on a real bus."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sbus import Bus
from tests.support.daemons import Daemon
from tools.stage import ROOT

TIMEOUT_SECONDS = 60.0

_BLOCK = re.compile(r"^\.Bd -literal -offset indent\n(.*?)^\.Ed$", re.MULTILINE | re.DOTALL)

_TEXT = (ROOT / "man" / "sbus-rpc.7").read_text("utf-8").split("\n.Sh EXAMPLES\n")[1]

EVENTS, SINGLETON, CALLER, MANY, PROVES_B, PROVES_A = (block.replace("\\e", "\\") for block in _BLOCK.findall(_TEXT))


SHARES_BUS = True


@contextmanager
def started(bus: Daemon, code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start an example; it is ended with the block."""
    env = {"SBUS_ADDRESS": bus.path, "PYTHONPATH": str(ROOT), "PATH": os.defpath}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd="/"
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def run(bus: Daemon, code: str) -> str:
    """Run an example to its end and return what it printed; it must end well."""
    with started(bus, code) as process:
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        assert (process.returncode, err) == (0, "")
        return out


def test_events_first_subscribe_then_load_the_state(bus: Daemon, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("old")
    with started(bus, EVENTS, str(state)) as program, Bus.connect(bus.path) as changer:
        assert line(program) == "loaded old"
        state.write_text("new")
        assert changer.publish("state/changed", receipt=True) == 1
        assert line(program) == "now new"


def test_a_service_of_which_there_is_one(bus: Daemon) -> None:
    assert run(bus, CALLER) == "no service is running\n"
    with started(bus, SINGLETON) as service:
        assert line(service) == "serving"
        assert run(bus, CALLER) == f"you are user {os.getuid()} says user {os.getuid()}\n"
        with started(bus, SINGLETON) as second:
            _, err = second.communicate(timeout=TIMEOUT_SECONDS)
            assert (second.returncode, err) == (1, f"process {service.pid} already serves it\n")
        assert run(bus, CALLER).startswith("you are user")


def test_a_group_call_while_members_join_and_leave(bus: Daemon) -> None:
    assert run(bus, MANY) == ""
    worker = "import os\nfrom sbus import Bus\nwith Bus.connect() as bus:\n"
    worker += "    bus.service('worker/status')(lambda request: {})\n    bus.serve(ready=lambda: print('ready', flush=True))"
    with started(bus, worker.format("'at work'")) as one, started(bus, worker.format("os._exit(0)")) as two:
        assert (line(one), line(two)) == ("ready", "ready")
        assert sorted(run(bus, MANY).splitlines()) == sorted([f"{one.pid} at work", f"{two.pid} disconnected"])


def test_two_clients_authenticate_each_other(bus: Daemon) -> None:
    with started(bus, PROVES_B) as b:
        assert line(b) == "waiting"
        with started(bus, PROVES_A) as a:
            out, err = a.communicate(timeout=TIMEOUT_SECONDS)
            assert (out, err) == (f"A authenticated !/cred/{os.getgid()}/{os.getuid()}/{b.pid}\n", "")
            assert line(b) == f"B authenticated !/cred/{os.getgid()}/{os.getuid()}/{a.pid}"
