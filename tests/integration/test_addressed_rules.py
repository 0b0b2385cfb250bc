"""Rules on publishing hold at a service's own address too, on a real daemon: the decision, and all answers about it."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path

import pytest

from sbus import Bus, RemoteRefusal, Request
from sbus.protocol import controls
from sbus.protocol.packets import join_batch
from tests.support.daemons import Daemon, StartDaemon
from tests.support.service_processes import running_service
from tests.support.shell import Shell
from tests.support.users import FIRST, SECOND, User
from tests.support.wire import RawClient, error_code, message
from tools.stage import ROOT, Stage

pytestmark = pytest.mark.usefixtures("needs_root")

_EXAMPLES = [part.partition("\n.Ed")[0] for part in (ROOT / "man/sbusd.toml.5").read_text("utf-8").split("-offset indent\n")[1:]]

RULES, ALL_DENIED = (text.replace('"operators"', str(FIRST.groups[0])) for text in _EXAMPLES if '"operators"' in text)
"""The examples of sbusd.toml(5): the group may call and others may not; and besides, nothing else may be published."""


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


def service(bus: Daemon) -> tuple[RawClient, bytes]:
    """Return a client of root's that listens as services do, and its address."""
    made = bus.client()
    address = made.ask(controls.ADDRESS)
    made.subscribe(b"rpc/danger")
    made.subscribe(address + b"rpc/danger")
    assert made.barrier() == []
    return made, address


def danger(request: Request) -> str:
    """Run, as a program that only some may call."""
    return f"run for {request.caller.uid}"


def called(path: str, *, all_of_them: bool = False) -> str:
    """Call the command, and return what it says, or the code with which the bus refuses it."""
    with Bus.connect(path) as bus:
        try:
            if all_of_them:
                (outcome,) = bus.call_all("danger")
                return outcome.result().decode()
            return bus.call("danger", timeout=60).decode()
        except RemoteRefusal as refusal:
            return refusal.code.name if refusal.code else refusal.words


def test_a_rule_holds_at_the_address_of_a_service(ruled: Daemon) -> None:
    service_, address = service(ruled)
    allowed, denied = ruled.client(FIRST), ruled.client(SECOND)
    for key in (b"rpc/danger", address + b"rpc/danger"):
        # What is cached for one is not open to the other.
        for _ in range(2):
            allowed.publish(key, b"may")
            denied.publish(key, b"may not")
            denied.send(join_batch([message(key, b"may not"), message(key, b"may not either")]))
            assert allowed.barrier() == []
            reported = denied.barrier()
            assert [error_code(packet) for packet in reported] == ["EPERM"] * 3
            assert service_.barrier() == [message(key, b"may")]
    # Other names that a key might have are names of nothing.
    digits = address.split(b"/")[2]
    heads = (b"!/conn/0%b/" % digits, b"!/conn//", b"!/conn/1/" + address, address + address)
    for key in (head + b"rpc/danger" for head in heads):
        denied.publish(key, b"may not")
        assert [error_code(packet) for packet in denied.barrier()] == ["EPERM"], key
    assert service_.barrier() == []
    # Below the address, what no rule is about is open as ever.
    denied.publish(address + b"other", b"open")
    assert denied.barrier() == []


def test_explanations_match_the_enforcement(ruled: Daemon, config: Path, stage: Stage) -> None:
    _, address = service(ruled)
    key = address + b"rpc/danger"
    denied = ruled.client(SECOND)
    refused = f"refused by rule 2 of {config}: only operators may call; another rule allows it to a group: new members must log in again"
    reported = json.loads(denied.ask(controls.EXPLAIN, b"%d\0publish\0%b" % (SECOND.uid, key)))
    assert (reported["allowed"], reported["error"], reported["reason"]) == (False, "EPERM", refused)
    reported = json.loads(ruled.client(FIRST).ask(controls.EXPLAIN, b"%d\0publish\0%b" % (FIRST.uid, key)))
    assert (reported["allowed"], reported["rule"]) == (True, f"rule 1 of {config}")
    reported = json.loads(denied.ask(controls.TRACE, key))
    assert (reported["publishable"], reported["reason"]) == (False, refused)
    denied.control(controls.MEMBERS, key)
    answer = denied.receive()
    assert error_code(answer) == "EPERM"
    assert refused.encode() in answer
    assert [each["id"] for each in json.loads(ruled.client(FIRST).ask(controls.MEMBERS, key))["members"]] == [int(address.split(b"/")[2])]
    shell = Shell(stage, ruled)
    done = shell.run("explain", str(SECOND.uid), "publish", key.decode())
    assert (done.returncode, done.stderr) == (7, b"")
    assert done.stdout.decode() == f"{SECOND.uid} may not publish to {key.decode()}: EPERM: {refused}\n"
    assert refused in ruled.client(SECOND).ask(controls.TRACE, key).decode()
    denied.publish(key)
    assert [error_code(packet) for packet in denied.barrier()] == ["EPERM"]
    ruled.stop()
    assert f"rule 2 of {config}" in ruled.stderr


def test_permitted_callers_are_served_and_others_rejected(ruled: Daemon, first_user: User, second_user: User) -> None:
    """Answers go to the caller's address, ``!/conn/<id>/ret/``, of which the rules say nothing."""
    with running_service(ruled.path, danger=danger):
        for all_of_them in (False, True):
            assert first_user.call(partial(called, ruled.path, all_of_them=all_of_them)) == f"run for {first_user.uid}"
            assert second_user.call(partial(called, ruled.path, all_of_them=all_of_them)) == "EPERM"


def test_if_everything_is_denied_calls_need_the_documented_rules(ruled: Daemon, config: Path, first_user: User, second_user: User) -> None:
    config.write_text(ALL_DENIED)
    ruled.process.send_signal(signal.SIGHUP)
    observer = ruled.client()
    while json.loads(observer.ask(controls.EXPLAIN, b"\0publish\0x"))["allowed"]:
        continue
    with running_service(ruled.path, second_user, danger=danger):
        assert first_user.call(partial(called, ruled.path)) == f"run for {first_user.uid}"
        assert second_user.call(partial(called, ruled.path)) == "EPERM"


def test_new_rules_hold_for_routes_that_are_cached(ruled: Daemon, config: Path) -> None:
    service_, address = service(ruled)
    key = address + b"rpc/danger"
    client = ruled.client(SECOND)
    config.write_text("")
    ruled.process.send_signal(signal.SIGHUP)
    while not json.loads(client.ask(controls.TRACE, key))["publishable"]:
        continue
    client.publish(key, b"1")
    assert client.barrier() == []
    assert service_.receive() == message(key, b"1")
    config.write_text(RULES)
    ruled.process.send_signal(signal.SIGHUP)
    while json.loads(client.ask(controls.TRACE, key))["publishable"]:
        continue
    client.publish(key, b"2")
    assert [error_code(packet) for packet in client.barrier()] == ["EPERM"]
    assert service_.barrier() == []
