"""Each hint that doctor or a client prints is run as it is printed, where it is printed; afterwards what it was about is well."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import ADDONS, BUS, boot

DROP_IN = "/etc/sbus/sbusd.toml.d/60-hint.toml"
STORE = 'printf \'[[stream]]\\nname = "a"\\nkeys = ["a/"]\\n\' >/etc/sbus/store.toml'

_COMMAND = re.compile(r"(?:systemctl|chmod|sbusctl) [^;(),]*[\w.]")
"""A command in a hint."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A fault that *breaks* makes. The hint is that of the *check* of doctor, or of the program *asks* if that is not empty."""

    name: str
    breaks: str
    check: str = ""
    asks: str = ""
    removes_cause: str = ""
    """What an administrator does where the hint says "remove the cause" or "correct"."""
    works: str = "sbusctl whoami"
    """A command that succeeds afterwards."""


_MASK = "systemctl mask --quiet sbus.socket; systemctl daemon-reload; systemctl unmask --quiet sbus.socket; systemctl daemon-reload"

_UNTIL_TAKEN = """until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 19722))' 2>/dev/null; do sleep 0.1; done"""

_UNTIL_RESTARTED = "until systemctl show --property=NRestarts --value sbus.service | grep --quiet '[1-9]'; do sleep 0.1; done"
"""Until systemd has restarted the bus after its first failure."""

SITUATIONS = (
    Situation("the path is gone, for doctor", "rm /run/sbus.socket", "listener"),
    Situation("the path is gone, for a client", "rm /run/sbus.socket", asks="sbusctl whoami"),
    Situation("the path is gone, for another check", "rm /run/sbus.socket", "socket"),
    Situation(
        "the path is a file", "systemctl stop sbus.socket sbus.service; rm --force /run/sbus.socket; touch /run/sbus.socket", "socket",
        removes_cause="rm /run/sbus.socket",
    ),
    Situation("the socket was stopped", "systemctl stop sbus.socket", asks="sbusctl whoami"),
    Situation("the socket was stopped, for doctor", "systemctl stop sbus.socket", "sbus.socket"),
    Situation("systemd lost the socket", _MASK, "listener", works="systemctl restart sbus.service && sbusctl whoami"),
    Situation("the bus got no socket", f"{_MASK}; systemctl restart sbus.service", asks="sbusctl whoami"),
    Situation(
        "the socket is not enabled", "systemctl disable --quiet sbus.socket", "sbus.socket", works="systemctl is-enabled sbus.socket",
    ),
    Situation("the service is masked", "systemctl mask --quiet --now sbus.service", "sbus.service"),
    Situation("the socket is masked", "systemctl mask --quiet --now --runtime sbus.socket", "sbus.socket"),
    Situation(
        "a drop-in is not readable", f"install -m 600 /dev/null {DROP_IN}; echo '[limits]' >{DROP_IN}", "configuration",
        works="systemctl restart sbus.service && sbusctl whoami",
    ),
    Situation(
        "the bus could not read a drop-in", f"install -m 600 /dev/null {DROP_IN}; systemctl restart sbus.service", "configuration"
    ),
    Situation(
        "a drop-in has a fault", f"printf '[[policy]]\\nkeys = \"x/\"\\nwrong = 1\\n' >{DROP_IN}; systemctl restart sbus.service",
        "configuration", removes_cause=f"rm {DROP_IN}", works="sbusctl pub x/y z",
    ),
    Situation(
        "the configuration has an error", f"echo 'wrong =' >/etc/sbus/sbusd.toml; systemctl restart sbus.service; {_UNTIL_RESTARTED}",
        "configuration",
        removes_cause="cp /root/sbus/sbusd.toml /etc/sbus",
    ),
    Situation(
        "the bus has failed", f"echo 'wrong =' >/etc/sbus/sbusd.toml; systemctl restart sbus.service; {_UNTIL_RESTARTED}", "sbus.service",
        removes_cause="cp /root/sbus/sbusd.toml /etc/sbus",
    ),
    Situation(
        "journald did not run", "systemctl stop systemd-journald.socket systemd-journald-dev-log.socket systemd-journald.service"
        "; systemctl restart sbus.service; systemctl start systemd-journald.socket systemd-journald.service", "standard error",
    ),
    Situation(
        "the port of the metrics is taken", "systemd-run --quiet --unit=taker python3 -m http.server 19722 --bind 127.0.0.1"
        f"; {_UNTIL_TAKEN}; systemctl enable --quiet sbus-metrics.socket"
        "; systemctl start sbus-metrics.socket", "sbus-metrics.socket", removes_cause="systemctl stop taker.service",
        works="systemctl is-active sbus-metrics.socket",
    ),
    Situation(
        "the store has an error in its configuration", "echo '[[stream]' >/etc/sbus/store.toml; systemctl enable --quiet sbus-store.service"
        "; systemctl restart sbus-store.service", "sbus-store.service", removes_cause=STORE, works="sbusctl store streams",
    ),
    Situation(
        "the store cannot read its configuration", f"{STORE}; chmod 600 /etc/sbus/store.toml; systemctl restart sbus-store.service",
        "sbus-store.service", removes_cause="chmod 644 /etc/sbus/store.toml", works="sbusctl store streams",
    ),
    Situation(
        "the store was stopped", f"{STORE}; systemctl stop sbus-store.service", asks="sbusctl store streams", works="sbusctl store streams",
    ),
    Situation(
        "the socket for blobs is gone", "systemctl enable --quiet --now sbus-blob.socket; rm /run/sbus-blob.socket", "blob socket",
        works="test -S /run/sbus-blob.socket",
    ),
    Situation(
        "a feed of the trigger does not run", "printf '[[on]]\\nkeys = \"net/link/\"\\nfrom = [\"*\"]\\nname = \"w\"\\n"
        "start = \"x.service\"\\n' >/etc/sbus/trigger.toml; systemctl enable --quiet sbus-trigger.service"
        "; systemctl restart sbus-trigger.service", "trigger feed", works="systemctl is-active sbus-feed@netlink.service",
    ),
    Situation(
        "the trigger was stopped", "systemctl stop sbus-trigger.service", "trigger", works="systemctl is-active sbus-trigger.service"
    ),
    Situation(
        "the trigger is not enabled", "systemctl disable --quiet --now sbus-trigger.service", "trigger",
        works="systemctl is-active sbus-trigger.service && systemctl is-enabled sbus-trigger.service",
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def hinted(built: Packages) -> Iterator[Container]:
    """A machine with all packages."""
    machine = boot(built, installed=(*BUS, *ADDONS))
    try:
        machine.run("sbusctl whoami && cp --archive /etc/sbus /root/sbus")
        yield machine
    finally:
        machine.stop()


def _findings(machine: Container, check: str) -> list[dict[str, str]]:
    """Return what doctor says about *check* unless it is well."""
    said = machine.run("sbusctl doctor --json=short", check=False)
    checks: list[dict[str, str]] = json.loads(said.stdout)["checks"]
    return [each for each in checks if each["check"] == check and each["result"] in ("warn", "fail")]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name.replace(" ", "-"))
def test_a_hint_repairs_what_it_is_about(hinted: Container, situation: Situation) -> None:
    # The situation before was repaired by its hint. Where that did not help, only its own test is to fail.
    start = "systemctl start sbus.socket sbus.service && test -S /run/sbus.socket"
    hinted.run(f"systemctl reset-failed; {start} || systemctl restart sbus.socket sbus.service")
    hinted.run(situation.breaks, check=False)
    try:
        if situation.asks:
            done = hinted.run(situation.asks, check=False)
            assert done.status != 0, done
            hint = done.stderr
        else:
            (found, *_) = _findings(hinted, situation.check)
            hint = found["advice"]
        commands = _COMMAND.findall(hint)
        assert commands, hint
        if situation.removes_cause:
            hinted.run(situation.removes_cause)
        for command in commands:
            hinted.run(command, check="status" not in command.split())
        hinted.wait_for(situation.works)
        assert not situation.check or _findings(hinted, situation.check) == []
    finally:
        # unmask makes systemd read all units again, also where nothing is masked.
        unmask = "! systemctl is-enabled $units | grep --quiet masked || systemctl unmask --quiet $units"
        clean = f"cp /root/sbus/sbusd.toml /etc/sbus; rm --force {DROP_IN}; systemctl stop taker.service"
        hinted.run(f"{clean}; units='sbus.service sbus.socket'; {unmask}; systemctl reset-failed", check=False)


def test_no_complaint_is_left_at_the_end(hinted: Container) -> None:
    """What was repaired by its hints is well, and the state of each unit that is on is named."""
    hinted.run("systemctl restart sbus.socket; sbusctl whoami")
    said = json.loads(hinted.run("sbusctl doctor --json=short", check=False).stdout)
    allowed = {"gaps", "trigger unit", "packets"}
    assert [each for each in said["checks"] if each["result"] in ("warn", "fail") and each["check"] not in allowed] == []
    units = {each["check"] for each in said["checks"] if each["result"] == "ok"}
    assert units >= {"sbus-store.service", "sbus-metrics.socket", "sbus-blob.socket", "sbus-trigger.service", "sbus-feed@netlink.service"}


def test_records_after_a_start_without_journald_are_in_the_journal(hinted: Container) -> None:
    stop = "systemctl stop systemd-journald.socket systemd-journald-dev-log.socket systemd-journald.service"
    hinted.run(f"{stop}; systemctl restart sbus.service; systemctl start systemd-journald.socket systemd-journald.service", check=False)
    hinted.run("sbusctl sub -n 1 '!/cred//4711///x'", user="alice", check=False)
    hinted.wait_for("journalctl --sync; journalctl SBUS_EVENT=secret-refused | grep --quiet rejected")


def test_a_refusal_names_the_file_that_cannot_be_read(hinted: Container) -> None:
    hinted.run(f"install -m 600 /dev/null {DROP_IN}; systemctl restart sbus.service")
    try:
        assert DROP_IN in hinted.run("sbusctl whoami", check=False).stderr
        assert hinted.run("sbusd --check-config", check=False).status == 78
    finally:
        hinted.run(f"rm {DROP_IN}; systemctl restart sbus.service; sbusctl whoami")


def test_nothing_is_checked_that_is_not_installed(hinted: Container) -> None:
    hinted.run(f"{STORE}; echo 'realm = \"x\"' >>/etc/sbus/link.toml; apt-get remove --yes --quiet=2 sbus-store sbus-link sbus-trigger")
    said = json.loads(hinted.run("sbusctl doctor --json=short", check=False).stdout)
    assert said["failed"] == 0, said
    without = [each for each in said["checks"] if "configuration without the package" in each["reason"]]
    assert {each["check"] for each in without} == {"sbus-store", "sbus-link", "sbus-trigger"}
