"""A bus that cannot start: clients, sbusctl and systemd report why, soon, and the repair is one command."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.container import Container, Outcome

DEFAULT_TIMEOUT_SECONDS = 30.0
"""The timeout of a client; one that ends much earlier has not waited for it."""

FAILS_SECONDS = 240.0
"""Longer than systemd takes to give up on a busy machine: 30 starts, or 3 minutes."""

WRONG = "connectoins = 1\n"

REPAIR = "systemctl reset-failed sbus.service sbus.socket; systemctl start sbus.socket && sbusctl whoami"

FACES = """
import asyncio, sys
from sbus import AsyncBus, Bus, SbusError
def blocking():
    with Bus.connect() as bus:
        bus.ping()
async def other():
    async with AsyncBus.connect() as bus:
        await bus.ping()
for face in (blocking, lambda: asyncio.run(other())):
    try:
        face()
    except SbusError as error:
        print(type(error).__name__, error)
    else:
        sys.exit("no error")
"""


@contextmanager
def broken(machine: Container, text: str = WRONG, file: str = "/etc/sbus/sbusd.toml") -> Iterator[None]:
    """Add *text* to the beginning of a configuration file, and undo that."""
    machine.run(f"cp {file} /tmp/before && cat - /tmp/before >{file}", stdin=text)
    try:
        yield
    finally:
        machine.run(f"cat /tmp/before >{file}")


@pytest.fixture
def loop(machine: Container) -> Iterator[Container]:
    """A machine whose bus fails to start because of its configuration, and is restarted; at the end it is repaired."""
    machine.run("systemctl reset-failed; systemctl start sbus.socket; sbusctl whoami")
    with broken(machine):
        assert machine.run("systemctl restart sbus.service", check=False).status != 0
        yield machine
    machine.run(f"systemctl stop sbus.service; {REPAIR}")  # a start from before the repair would still fail


def soon(machine: Container, command: str, user: str | None = None) -> Outcome:
    """Run *command*, which must fail before the timeout of a client."""
    began = time.monotonic()
    done = machine.run(command, user=user, check=False)
    assert time.monotonic() - began < DEFAULT_TIMEOUT_SECONDS, done
    assert done.status != 0, done
    return done


@pytest.mark.parametrize("user", [None, "alice"])
def test_each_command_fails_soon_with_the_reason(loop: Container, user: str | None) -> None:
    for command in ("whoami", "pub a b", "sub -n 1 a", "ping -c 1"):
        done = soon(loop, f"sbusctl {command}", user)
        assert done.status == 1
        assert "the bus does not start: /etc/sbus/sbusd.toml: connectoins: unknown key; " in done.stderr
        assert "systemctl status sbus.service" in done.stderr


def test_both_faces_of_the_python_client_fail_soon_with_the_reason(loop: Container) -> None:
    loop.run("cat >/tmp/faces.py", stdin=FACES)
    began = time.monotonic()
    lines = loop.output("python3 /tmp/faces.py", user="bob").splitlines()
    assert time.monotonic() - began < DEFAULT_TIMEOUT_SECONDS
    assert [line.split()[0] for line in lines] in (["Disconnected"] * 2, ["NoBus"] * 2)
    assert all("connectoins: unknown key" in line for line in lines)


def test_the_doctor_begins_with_the_cause(loop: Container) -> None:
    done = soon(loop, "sbusctl doctor", "alice")
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("The bus does not work: configuration: /etc/sbus/sbusd.toml: connectoins: unknown key")
    assert second.startswith("-> correct /etc/sbus/sbusd.toml, then: systemctl reset-failed")
    said = json.loads(soon(loop, "sbusctl doctor --json=short").stdout)
    assert (said["works"], said["cause"]["check"]) == (False, "configuration")
    results = {each["check"]: each["result"] for each in said["checks"]}
    assert results["connection"] == "fail"
    assert results.get("protocol") != "fail"
    assert results["sbus.service"] in {"fail", "warn"}


def test_it_fails_in_the_end_and_starts_after_the_repair(loop: Container) -> None:
    loop.wait_for("systemctl is-failed sbus.service && systemctl is-failed sbus.socket", seconds=FAILS_SECONDS)
    assert loop.run("systemctl is-system-running", check=False).stdout == "degraded\n"
    done = soon(loop, "sbusctl whoami", "alice")
    assert "cannot connect to /run/sbus.socket: the bus does not start: /etc/sbus/sbusd.toml: connectoins" in done.stderr
    done = soon(loop, "sbusctl doctor", "alice")
    assert done.stdout.startswith("The bus does not work: configuration: ")
    assert "systemctl reset-failed sbus.service sbus.socket; systemctl restart sbus.socket" in done.stdout


def test_connections_survive_until_a_repair_in_time(machine: Container) -> None:
    machine.run("systemctl reset-failed; systemctl start sbus.socket; sbusctl whoami")
    subscriber = machine.start("sbusctl sub -n 1 --timeout 300 a", user="alice")
    machine.wait_for("sbusctl members --json=short a | grep --quiet alice || sbusctl members a | grep --quiet alice")
    with broken(machine):
        assert machine.run("systemctl restart sbus.service", check=False).status != 0
        machine.wait_for("systemctl show --property=NRestarts --value sbus.service | grep --invert-match --line-regexp 0")
    machine.wait_for("systemctl is-active sbus.service", seconds=FAILS_SECONDS)
    machine.run("sbusctl pub --receipt a b")
    assert subscriber.communicate(timeout=120)[0] == "a\tb\n"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("/bin/false", "sbus.service failed (exit-code, status 1)"),
        ("/usr/bin/no-such-program", "Failed at step EXEC spawning /usr/bin/no-such-program: No such file or directory"),
        ("/usr/bin/python3 -c 'import no_such_module'", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_program_that_does_not_run_is_reported_too(machine: Container, program: str, reason: str) -> None:
    folder = "/etc/systemd/system/sbus.service.d"
    machine.run("systemctl reset-failed; systemctl start sbus.socket; systemctl stop sbus.service")
    machine.run(f"mkdir -p {folder} && cat >{folder}/program.conf", stdin=f"[Service]\nExecStart=\nExecStart={program}\n")
    try:
        machine.run("systemctl daemon-reload; systemctl start sbus.socket")
        # The record of a program that has just ended can come too late for a client.
        machine.wait_for(f"sbusctl whoami 2>&1 | grep --quiet --fixed-strings {shlex.quote(reason)}")
        # The journal is not for every user.
        assert "the bus does not start: " in soon(machine, "sbusctl whoami", "alice").stderr
    finally:
        machine.run(f"rm {folder}/program.conf; systemctl daemon-reload; systemctl stop sbus.service; {REPAIR}")


@pytest.mark.parametrize(
    ("file", "text"),
    [("/etc/sbus/sbusd.toml", WRONG), ("/etc/sbus/sbusd.toml.d/60-local.toml", '[[policy]]\nkeys = "x/"\nusres = ["alice"]\n')],
    ids=["error", "fault"],
)
def test_a_reload_fails_and_changes_nothing_if_the_configuration_is_refused(machine: Container, file: str, text: str) -> None:
    machine.run(f"systemctl reset-failed; systemctl start sbus.socket; sbusctl whoami; touch {file}")
    machine.wait_for("systemctl show --property=ActiveState sbus.service | grep --quiet =active")  # an earlier reload may not have ended
    state = "systemctl show --property=MainPID,ActiveState,NRestarts sbus.service; sbusctl stats --json=short | grep -o '\"faults.*'; true"
    before = machine.output(state)
    with broken(machine, text, file):
        assert machine.run("systemctl reload sbus.service", check=False).status != 0
        assert machine.output(state) == before
        assert "unknown key" in machine.journal("--unit=sbus.service --lines=20")
        machine.run("sbusctl explain alice publish x/a && sbusctl pub a b", user="alice")
    machine.run("systemctl reload sbus.service && sbusctl whoami")
    machine.run("rm --force /etc/sbus/sbusd.toml.d/60-local.toml; systemctl reload sbus.service")


def test_a_user_bus_names_the_manager_of_the_user(machine: Container) -> None:
    machine.run("loginctl enable-linger alice")
    machine.wait_for("systemctl is-active user@$(id --user alice).service")
    done = soon(machine, "sbusctl --user whoami", "alice")
    assert "systemctl --user restart sbus.socket" in done.stderr
    machine.run("mkdir --parents .config/sbus && echo 'connectoins = 1' >.config/sbus/sbusd.toml", user="alice")
    machine.run("systemctl --user start sbus.socket", user="alice")
    done = soon(machine, "sbusctl --user whoami", "alice")
    assert "connectoins: unknown key" in done.stderr
    assert "systemctl --user status sbus.service" in done.stderr
    machine.run("rm .config/sbus/sbusd.toml; systemctl --user stop sbus.service sbus.socket", user="alice")
    machine.run(
        "systemctl --user reset-failed sbus.service sbus.socket; systemctl --user start sbus.socket; sbusctl --user whoami", user="alice"
    )


def test_an_upgrade_starts_a_bus_that_has_failed(machine: Container) -> None:
    drop_in = "/etc/systemd/system/sbus.service.d/limit.conf"
    machine.run("systemctl reset-failed; systemctl start sbus.socket; sbusctl whoami")
    # It fails as above, only sooner.
    machine.run(f"mkdir -p $(dirname {drop_in}) && cat >{drop_in} && systemctl daemon-reload", stdin="[Unit]\nStartLimitBurst=2\n")
    with broken(machine):
        machine.run("systemctl restart sbus.service", check=False)
        machine.wait_for("systemctl is-failed sbus.socket", seconds=FAILS_SECONDS)
    machine.run(f"rm {drop_in}; systemctl daemon-reload")
    machine.run("apt-get install --yes --quiet=2 --reinstall /opt/packages/sbusd_*.deb")
    machine.run("systemctl is-active sbus.socket && sbusctl whoami")
