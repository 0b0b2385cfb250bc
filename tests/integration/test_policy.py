"""Rules on a real daemon with two users: rejected actions, explanations, and reloads."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon, StartDaemon
from tests.support.shell import Shell
from tests.support.users import FIRST, SECOND
from tests.support.wire import error_code, message
from tools.stage import Stage

pytestmark = pytest.mark.usefixtures("needs_root")

RULES = f"""
[[policy]]
keys = "lab/"
publish = "allow"
subscribe = "allow"
groups = [{FIRST.groups[0]}]

[[policy]]
keys = "lab/"
publish = "deny"
subscribe = "deny"
comment = "the laboratory is closed"
"""

WAIT_SECONDS = 30.0
"""When a record that has not come is a failure; no test waits that long when it passes."""


def until(bus: Daemon, words: str) -> None:
    """Wait until the bus has recorded *words*: its standard error is a file, so look again each time that the bus has answered."""
    observer = bus.client()
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        if words in bus.stderr:
            return
        observer.barrier()
    raise AssertionError(f"never recorded: {words}; but {bus.stderr}")


@pytest.fixture
def config(folder: Path) -> Path:
    """The file of the bus, with the rules."""
    file = folder / "sbusd.toml"
    file.write_text(RULES)
    return file


@pytest.fixture
def ruled(daemon: StartDaemon, config: Path) -> Daemon:
    """A bus with the rules."""
    return daemon("-C", str(config))


AS_A_MEMBER = "another rule allows it to a group: new members must log in again"


def test_rules_hold_for_publishers_and_subscribers_alike(ruled: Daemon) -> None:
    member, outsider = ruled.client(FIRST), ruled.client(SECOND)
    for pattern in (b"", b"lab/", b"*/oven"):
        member.subscribe(pattern)
        outsider.subscribe(pattern)
    outsider.subscribe(b"hall/")
    assert member.barrier() == []
    assert [error_code(packet) for packet in outsider.barrier()] == ["EPERM"] * 3
    outsider.publish(b"lab/oven", b"forged")
    outsider.publish(b"hall/oven", b"1")
    reported, received = outsider.barrier()
    assert error_code(reported) == "EPERM"
    assert received == message(b"hall/oven", b"1")
    member.publish(b"lab/oven", b"2")
    member.publish(b"hall/door", b"3")
    assert member.barrier() == [message(b"hall/oven", b"1"), message(b"lab/oven", b"2"), message(b"hall/door", b"3")]
    assert outsider.barrier() == [message(b"hall/door", b"3")]


def test_a_publisher_learns_which_rule_refuses_which_message(ruled: Daemon, config: Path) -> None:
    """It gets the comment, as a subscriber does; a client that the rule does not concern gets nothing of it."""
    member, outsider = ruled.client(FIRST), ruled.client(SECOND)
    outsider.publish(b"lab/oven", b"forged")
    outsider.publish(b"!/bus/lost", b"1")
    denied, reserved = outsider.barrier()
    words = f"EPERM refused by rule 2 of {config}: the laboratory is closed; {AS_A_MEMBER}"
    assert denied == b"CMSG !/bus/error\0" + words.encode() + b"\0lab/oven"
    assert reserved.endswith(b"\0!/bus/lost")
    member.publish(b"lab/oven", b"1")
    member.publish(b"!/bus/lost", b"1")
    assert member.barrier() == [reserved]
    config.write_text(RULES.replace("the laboratory is closed", "painting"))
    ruled.process.send_signal(signal.SIGHUP)
    until(ruled, "reload")
    outsider.publish(b"lab/door", b"")
    assert outsider.barrier() == [denied.replace(b"the laboratory is closed", b"painting").replace(b"lab/oven", b"lab/door")]


def test_a_route_that_is_cached_for_one_publisher_is_still_closed_to_another(ruled: Daemon) -> None:
    member, outsider = ruled.client(FIRST), ruled.client(SECOND)
    member.subscribe(b"lab/")
    for _ in range(3):
        member.publish(b"lab/x", b"mine")
        assert member.barrier() == [message(b"lab/x", b"mine")]
        outsider.publish(b"lab/x", b"forged")
        assert [error_code(packet) for packet in outsider.barrier()] == ["EPERM"]
    assert member.barrier() == []


def test_new_rules_hold_at_once_and_a_wrong_file_changes_nothing(ruled: Daemon, config: Path) -> None:
    member, outsider = ruled.client(FIRST), ruled.client(SECOND)
    config.write_text("")
    ruled.process.send_signal(signal.SIGHUP)
    until(ruled, "reloaded configuration: ")
    for client in (member, outsider):
        client.subscribe(b"lab/")
        client.subscribe(b"hall/")
        assert client.barrier() == []
    config.write_text(RULES)
    ruled.process.send_signal(signal.SIGHUP)
    reported = outsider.receive()
    assert error_code(reported) == "EPERM"
    assert f"the subscription lab/ has ended: refused by rule 2 of {config}: the laboratory is closed".encode() in reported
    config.write_text(RULES + "nonsense = 1\n")
    ruled.process.send_signal(signal.SIGHUP)
    until(ruled, f"the previous one still applies: {config}: policy.2.nonsense: unknown key")
    outsider.publish(b"lab/x", b"forged")
    assert [error_code(packet) for packet in outsider.barrier()] == ["EPERM"]
    member.publish(b"lab/x", b"1")
    assert member.barrier() == [message(b"lab/x", b"1")]
    member.publish(b"hall/x", b"2")
    assert member.barrier() == [message(b"hall/x", b"2")]
    assert outsider.barrier() == [message(b"hall/x", b"2")]


def test_a_user_that_is_no_longer_admitted_gets_an_error_and_is_disconnected(ruled: Daemon, config: Path) -> None:
    stays, goes = ruled.client(FIRST), ruled.client(SECOND)
    assert (stays.barrier(), goes.barrier()) == ([], [])
    config.write_text(f"allowed_users = [{FIRST.uid}]\nprotected_users = [{SECOND.uid}]\n")
    ruled.process.send_signal(signal.SIGHUP)
    (reported,) = goes.receive_to_end()
    assert error_code(reported) == "EACCES"
    assert stays.barrier() == []
    until(ruled, "disconnected a client of a protected user: EACCES user")


def test_a_decision_is_explained_to_an_owner_about_anyone_and_to_others_about_themselves(
    daemon: StartDaemon, config: Path, stage: Stage
) -> None:
    shell = Shell(stage, daemon("-C", str(config)))
    asked = ("explain", str(SECOND.uid), "subscribe", "*/oven")
    refused = f"{SECOND.uid} may not subscribe to */oven: EPERM: refused by rule 2 of {config}: the laboratory is closed; {AS_A_MEMBER}\n"
    for user in (None, SECOND):
        done = shell.run(*asked, user=user)
        assert (done.returncode, done.stdout.decode(), done.stderr) == (7, refused, b"")
    assert "only owners and users with the deliver right can ask about other users" in shell.fail(*asked, user=FIRST)
    own = json.loads(shell.succeed("--json=short", "explain", str(FIRST.uid), "publish", "lab/x", user=FIRST))
    assert (own["allowed"], own["rule"]) == (True, f"rule 1 of {config}")
    said = "root may publish to hall: no rule restricts publishing to this key\n"
    said += "Messages published with --wait wait for recipients of any user.\n"
    assert shell.succeed("explain", "root", "publish", "hall").decode() == said
    # What is explained is what is done.
    assert "EPERM" in shell.fail("pub", "lab/x", "forged", user=SECOND)
    assert shell.succeed("pub", "lab/x", "mine", user=FIRST) == b""


def test_an_admin_is_one_from_the_reload_on(ruled: Daemon, config: Path) -> None:
    client = ruled.client(SECOND)
    assert json.loads(client.ask(controls.STATS))["scope"] == "connection"
    config.write_text(f"admins = [{SECOND.uid}]\n[limits]\nbatch_packets = 7\n")
    ruled.process.send_signal(signal.SIGHUP)
    until(ruled, "restart required for changed configuration keys: limits.batch_packets")
    assert json.loads(client.ask(controls.STATS))["scope"] == "bus"
