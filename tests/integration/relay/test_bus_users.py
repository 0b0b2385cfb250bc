"""What a local user can do to other users' calls between hosts, and to the relay: real users, real buses, the shipped rules."""

from __future__ import annotations

import json
import os
import signal
import threading
from functools import partial
from pathlib import Path

import pytest

from sbus import Allow, Bus, ErrorCode, Item, Message, NoRecipient, RemoteError, RemoteRefusal, Twins
from sbus.protocol import controls
from sbus.protocol.envelope import Envelope, parse_envelope
from tests.support.bus_hosts import FIRST, SECOND, BusHost, MakeBusHosts, await_word, describe, echo
from tests.support.relays import wait_for
from tests.support.service_processes import running_service
from tests.support.users import User
from tools.stage import ROOT, Stage

pytestmark = pytest.mark.usefixtures("needs_root")


@pytest.fixture
def ruled(bus_hosts: MakeBusHosts, folder: Path, first_user: User) -> tuple[BusHost, BusHost]:
    """Two hosts with the shipped rules; the first user is in the group that may call remote hosts."""
    shipped = (ROOT / "etc/sbusd.toml.d/50-relay.toml").read_text()
    config = folder / "sbusd.toml"
    # The relay itself runs as root here, which the rules allow too.
    config.write_text(shipped.replace('groups = ["sbus-relay"]', f"groups = [{first_user.gid}]").replace('"sbus-relay"', "61999"))
    return bus_hosts("", "-C", str(config))


def refusal(path: str, *, hears: str = "", says: str = "") -> ErrorCode | None:
    """Return the error of a subscription to *hears*, or of a message to *says*; None if it is allowed."""
    with Bus.connect(path) as bus:
        try:
            bus.publish(says, "{}") if says else bus.subscribe(hears)
            bus.ping()
        except RemoteRefusal as error:
            return error.code
    return None


def read_item(item: Item) -> Envelope:
    """Return the envelope in a message."""
    assert isinstance(item, Message)
    return parse_envelope(item.payload)


def called(path: str, command: str, twin: int, data: bytes = b"x") -> str:
    """Return the response or the error of a call to a remote host."""
    with Bus.connect(path) as bus:
        try:
            return bus.call(command, data, twin=twin).decode()
        except (RemoteError, RemoteRefusal, NoRecipient) as error:
            return str(error)


def has_joined(host_with_bus: BusHost, times: int) -> bool:
    """Return whether the relay of *host_with_bus* has joined its bus that many times."""
    return host_with_bus.host.relay.log().count(": joined bus") == times


def test_the_shipped_rules(ruled: tuple[BusHost, BusHost], first_user: User, second_user: User) -> None:
    a, b = ruled
    with running_service(b.path, twins=Twins(), echo=echo):
        assert first_user.call(partial(called, a.path, "echo", SECOND)) == "x"
        assert "only root and the group sbus-relay can call other hosts" in second_user.call(partial(called, a.path, "echo", SECOND))
    for pattern in ("relay/*/", f"relay/{SECOND}/echo", "relay/", "relay/attempt", "relayed/echo", "relayed/", "", "*/", "rel*/x/y"):
        assert second_user.call(partial(refusal, a.path, hears=pattern)) is ErrorCode.EPERM, pattern
    for key in (f"relay/{SECOND}/echo", "relay/attempt", "relayed/echo"):
        assert second_user.call(partial(refusal, a.path, says=key)) is ErrorCode.EPERM, key
    # A user who may call remote hosts may neither receive such calls, nor make calls in the name of remote hosts.
    assert first_user.call(partial(refusal, a.path, hears="relay/*/")) is ErrorCode.EPERM
    assert first_user.call(partial(refusal, a.path, says="relayed/echo")) is ErrorCode.EPERM
    assert first_user.call(partial(refusal, a.path, hears="relayed/echo")) is ErrorCode.EPERM


def test_a_relay_without_any_rights_but_the_shipped_ones(
    ruled: tuple[BusHost, BusHost], folder: Path, first_user: User, second_user: User, stage: Stage
) -> None:
    """As packaged: the relay runs as its own user, which the rules name and which services trust."""
    config = folder / "sbusd.toml"
    config.write_text(config.read_text().replace("61999", str(second_user.uid)))
    for host_with_bus in ruled:
        os.kill(host_with_bus.daemon.pid, signal.SIGHUP)
        host_with_bus.host.relay.stop()
        host_with_bus.host.relay.run_as(second_user, stage)
        host_with_bus.host.relay.start()
        wait_for(partial(has_joined, host_with_bus, 2), "the relay to be joined")
    a, b = ruled
    with running_service(b.path, twins=Twins(relays=(second_user.uid,)), who=describe, slow=partial(await_word, b.path)) as service:
        assert json.loads(first_user.call(partial(called, a.path, "who", SECOND)))[:2] == [FIRST, -1]
        # It is notified when a service disconnects, although it may not list all clients.
        ret = a.host.send("slow", SECOND)
        with b.bus() as control:
            wait_for(lambda: control.members("word"), "the service to run it")
        service.kill()
        assert a.host.receive(ret)["err"] == "the service for slow on host 1002 ended before it responded; it may have run the request"
    with running_service(b.path, twins=Twins(), who=describe):
        said = first_user.call(partial(called, a.path, "who", SECOND))
        assert said == f"'who' failed: user {second_user.uid} is not a relay and cannot call for a remote host"


def test_the_shipped_rules_hold_at_addresses(ruled: tuple[BusHost, BusHost], second_user: User) -> None:
    a, _ = ruled
    with running_service(a.path, twins=Twins(), who=describe), a.bus() as bus:
        for key in (f"relay/{SECOND}/echo", "relayed/who"):
            (member,) = bus.members(key)
            assert second_user.call(partial(refusal, a.path, says=member.address + key)) is ErrorCode.EPERM, key
    assert a.host.counters().get("requests", 0) == 0
    assert "bus-unknown" not in a.host.counters()


def test_messages_to_an_address_are_checked_without_rules_too(bus_hosts: MakeBusHosts, second_user: User) -> None:
    """The address of the relay, to call a host; and of a service, to impersonate one."""
    a, b = bus_hosts()
    with a.bus() as bus:
        (relay,) = bus.members(f"relay/{SECOND}/echo")

    def reach_around(address: bytes, command: str, twin: int) -> Envelope | None:
        with Bus.connect(a.path) as other:
            ret = other.address + "ret/x"
            with other.subscribe(ret) as answers:
                asked = Envelope(command, "u", b"x", ret, source=twin, destinations=(SECOND,))
                assert other.publish(address, asked.encode(), receipt=True) == 1
                other.ping()
                return read_item(answers.receive(30.0)) if twin else None

    with running_service(a.path, twins=Twins(), who=describe), a.bus() as bus:
        (service,) = bus.members("relayed/who")
        said = second_user.call(partial(reach_around, service.address_bytes + b"relayed/who", "who", SECOND))
        assert said is not None
        assert (said.error, said.data) == (f"user {second_user.uid} is not a relay and cannot call for a remote host", b"")
        second_user.call(partial(reach_around, relay.address_bytes + b"relay/%d/echo" % SECOND, "echo", 0))
        a.host.wait_counted("bus-unknown")
    assert a.host.counters().get("requests", 0) == 0
    assert not b.host.redis.exists("msgbus.echo")


def test_no_list_of_users_admits_another_host(bus_hosts: MakeBusHosts) -> None:
    """Although the relay is root here and is the bus's client of the request: the request goes to Redis."""
    a, b = bus_hosts()
    with running_service(b.path, None, Allow(users=(0,), groups=(0,)), echo=echo), b.bus() as there:
        assert there.call("echo", "x") == b"x"
        a.host.send("echo", SECOND)
        assert b.host.receive("msgbus.echo")["src"] == FIRST


def test_users_cannot_respond_in_place_of_the_relay(bus_hosts: MakeBusHosts, second_user: User) -> None:
    """Even if no rule prevents subscription to the calls, and with the correct key and uid."""
    a, b = bus_hosts()

    def forge() -> int:
        with Bus.connect(a.path) as bus, bus.subscribe("relay/") as received, bus.subscribe("paid") as end:
            bus.publish("ready")
            asked = read_item(received.receive(60))
            bus.publish(asked.reply_to, Envelope(asked.command, asked.uid, b"forged", source=SECOND).encode())
            bus.ping()
            bus.publish("forged")
            end.receive(60)
            return bus.statistics.refusals

    with a.bus() as bus, bus.subscribe("ready", "forged") as reported:
        forging = threading.Thread(target=lambda: second_user.call(forge, 60))
        forging.start()
        reported.receive(60)
        answers: list[bytes] = []
        with a.bus() as caller:
            calling = threading.Thread(target=lambda: answers.append(caller.call("pay", "x", twin=SECOND)))
            calling.start()
            asked = b.host.receive("msgbus.pay")
            reported.receive(60)
            b.host.reply(asked, b"paid")
            calling.join(60)
            assert answers == [b"paid"]
            assert caller.statistics.stray_answers == 1
        bus.publish("paid")
        forging.join(60)


CALLS = 3
"""Maximum number of concurrent calls of a user in these tests."""


def flood(path: str, size: int) -> list[str]:
    """Make more calls than allowed, of *size* bytes each, the last one when a test subscribes to ``go``; return the errors."""
    errors: list[str] = []

    def call() -> None:
        with Bus.connect(path) as bus:
            try:
                bus.call("slow", bytes(size), twin=SECOND, timeout=600.0)
            except RemoteError as error:
                errors.append(error.words)

    threads = [threading.Thread(target=call) for _ in range(CALLS)]
    for thread in threads:
        thread.start()
    with Bus.connect(path) as bus:
        wait_for(lambda: bus.members("go"), "the test to have seen the calls")
    call()
    for thread in threads:
        thread.join(60)
    return errors


@pytest.mark.parametrize(
    ("settings", "size", "says"),
    [
        (f"bus_calls = {CALLS}\n", 1, f"busy: {CALLS} calls are already in progress for user"),
        ('bus_bytes = "1MiB"\n', 300_000, "busy: calls in progress hold 900000 bytes and this one 300000; the limit is 1048576 bytes"),
    ],
)
def test_user_at_the_limit_does_not_block_others(bus_hosts: MakeBusHosts, second_user: User, settings: str, size: int, says: str) -> None:
    a, b = bus_hosts(settings)
    said: list[list[str]] = []
    flooding = threading.Thread(target=lambda: said.append(second_user.call(partial(flood, a.path, size), 120)))
    flooding.start()
    asked = [b.host.receive("msgbus.slow") for _ in range(CALLS)]
    with running_service(b.path, twins=Twins(), echo=echo), a.bus() as bus, bus.subscribe("go"):
        a.host.wait_counted("bus-busy")
        assert called(a.path, "echo", SECOND) == "x"
        for each in asked:
            b.host.reply(each, b"at last")
        flooding.join(120)
        assert [len(errors) for errors in said] == [1]
        assert said[0][0].startswith(says)
        # Completed calls do not count.
        assert second_user.call(partial(called, a.path, "echo", SECOND)) == "x"


def test_a_relay_that_its_bus_refuses_says_so(bus_hosts: MakeBusHosts, folder: Path) -> None:
    config = folder / "sbusd.toml"
    config.write_text('[[policy]]\nkeys = "relayed/"\npublish = "deny"\n')
    a, b = bus_hosts("", "-C", str(config))
    with running_service(b.path, twins=Twins(), echo=echo):
        assert called(a.path, "echo", SECOND) == "'echo' failed: the bus rejected a call of its relay for echo on host 1002"
    b.host.relay.wait_logged("operations for remote hosts")


def test_client_in_place_of_the_relay_is_logged(bus_hosts: MakeBusHosts, second_user: User) -> None:
    """The relay does not serve while another client does; it joins when that one disconnects."""
    a, _ = bus_hosts()
    a.host.relay.kill()
    squatter = a.daemon.client(second_user)
    address = squatter.ask(controls.ADDRESS)
    for pattern in (b"relay/", address + b"relay/"):
        squatter.subscribe(pattern)
    squatter.barrier()
    a.host.relay.start()
    reported = a.host.relay.wait_logged("another relay serves bus")
    assert f"connection {address.split(b'/')[2].decode()}, uid {second_user.uid}, " in reported
    assert reported.count(": joined bus") == 1
    squatter.close()
    wait_for(partial(has_joined, a, 2), "the relay to have its place")


def test_call_for_another_host_than_the_key_is_rejected(bus_hosts: MakeBusHosts) -> None:
    """A relay rejects a call to a host other than the one in the key, to which the rules apply."""
    a, _ = bus_hosts()
    with a.bus() as bus, bus.subscribe(bus.address + "ret/") as answers:
        asked = Envelope("echo", "u", b"x", bus.address + "ret/u", destinations=(SECOND,))
        bus.publish(f"relay/{FIRST}/echo", asked.encode())
        assert read_item(answers.receive(60)).error == f"dst: must be exactly the host that the key names, {FIRST}"
