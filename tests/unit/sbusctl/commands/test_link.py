"""``sbusctl link``: what it shows of a state, also of one that is malformed, and the configuration of a server."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sbus_services.link.counters import HostCounters
from sbus_services.link.peers import HostState
from sbusctl.commands.link import NoLinkError, lines
from tests.unit.sbus_services.link.test_administration import state
from tools.stage import ROOT

ENV = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}


def test_a_state_fits_a_terminal() -> None:
    counters = HostCounters(messages=1_234_567, bytes=10**9, lost=12, unknown_losses=1, malformed=2, stale=3)
    made = state([HostState("beta", True, 0.5, 3, 2, "192.0.2.1", counters), HostState("gamma", False, 75.0, 0, 0, "", HostCounters())])
    page = lines(made | {"certificate_end": 1_798_761_599.0}, legend=True, width=None)
    assert all(len(line) <= 80 for line in page)
    assert page == [
        "realm          R",
        "host           alpha",
        "network        connected, nats, tls://nats-1 2.12.7",
        "sent           7 messages",
        "spooled        3B",
        "dropped        0 messages",
        "not published  0 messages",
        "certificate    valid until 2026-12-31",
        "",
        "HOST   STATE   SILENT  MESSAGES  SIZE  LOST  UNKNOWN  WANTS  WANTED  ERRORS",
        "beta   alive       0s      1.2M  954M    12        1      3       2       5",
        "gamma  gone   1min15s         0     0     0        0      0       0       0",
    ]


def test_a_bus_without_a_link_gets_the_advice_that_fits_it() -> None:
    assert str(NoLinkError("/run/sbus.socket")) == "no link on this bus; start it: systemctl start sbus-link"
    for address in ("/run/user/1000/sbus.socket", "/run/sbus/lab.socket", "/tmp/own"):
        assert str(NoLinkError(address)) == "no link on this bus; start it for this bus: sbus-link -C FILE"


@pytest.mark.parametrize(
    "made", [{}, {"hosts": 5, "network": []}, {"certificate_end": 1e300}, {"hosts": [{}, 7, {"name": "\x1b[2J", "messages": -1e400}]}]
)
def test_a_malformed_state_is_shown_as_far_as_it_goes(made: dict[str, object]) -> None:
    page = lines(made, legend=True, width=None)
    assert page[2].startswith("network        not connected, -")
    assert not any("\x1b" in line for line in page)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sbusctl.main", "link", *arguments]
    return subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
def test_a_configuration_is_printed() -> None:
    done = run("config", "--realm", "R", "alpha", "beta", "--listen", "10.0.0.1:4222")
    assert (done.returncode, done.stderr) == (0, "")
    assert 'listen: "10.0.0.1:4222"' in done.stdout
    assert '{ user: "beta", permissions' in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["config", "alpha"], "--realm"),
        (["config", "--realm", "R"], "HOST"),
        (["config", "--realm", "R", "a.b"], "invalid host"),
        (["config", "--realm", "R", "a", "--nkey", "UABC"], "HOST=KEY"),
        (["config", "--realm", "R", "a", "--nkey", "a=UABC"], "invalid nkey"),
        (["status", "alpha"], "unexpected extra argument"),
        (["halt"], "halt"),
        ([], "missing action"),
    ],
)
def test_a_mistake_is_an_error(arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
