"""Clients whose packets wait until their unit is known, and what the bus shows of units."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator

import pytest

from sbus.protocol import controls
from sbus.protocol.packets import control_packet
from sbus_programs.config.rules import PolicyRule, RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings
from sbusd.broker.access import BusOwnership
from sbusd.broker.units import Units
from tests.support.group_reader import GroupReader, replace_reader
from tests.support.in_process_bus import BusClient, InProcessBus, MakeBus
from tests.support.wire import error_code, message

ALICE, BOB = 1_000, 1_001
SECONDS = 30.0
"""The timeout of everything; a test that passes takes far less."""


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupReader]:
    """The replaced thread."""
    monkeypatch.setattr(Units.__init__, "__kwdefaults__", {"wait_seconds": SECONDS})  # a test may stop longer than a client waits
    made = replace_reader(monkeypatch)
    yield made
    made.close()


RULES = DaemonSettings(
    policy=(
        PolicyRule("web/", "allow", "allow", users=(ALICE,), units=("web.service",)),
        PolicyRule("web/", "deny", "deny"),
        PolicyRule("open/", "deny", users=(ALICE,), units=("bad@*.service",)),
    ),
    rights=RightsSettings(tap=Subjects((BOB,))),
)


@pytest.fixture
def ruled(make_bus: MakeBus, reader: GroupReader) -> InProcessBus:
    """A bus with rules about units of alice."""
    bus = make_bus(RULES, BusOwnership(0, None, frozenset({0})))
    assert reader.socket is None
    return bus


def requested(bus: InProcessBus, reader: GroupReader, count: int = 1) -> list[int]:
    """Run the bus until it has requested *count* units, which may take several turns, and return the connections."""
    end = time.monotonic() + SECONDS
    found = reader.requests()
    while len(found) < count and time.monotonic() < end:
        bus.switch.turn(200)
        found += reader.requests()
    return found


def place(bus: InProcessBus, reader: GroupReader, client: BusClient, path: str = "/system.slice/web.service", **options: int) -> None:
    """Let the unit of *client* be read."""
    reader.answer(client.connection, path, **options)
    bus.run()


def test_packets_wait_for_the_unit(ruled: InProcessBus, reader: GroupReader) -> None:
    listener = ruled.client(uid=0)
    listener.subscribe(b"open/")
    assert listener.barrier() == []
    client = ruled.client(uid=ALICE)
    client.publish(b"web/x", b"1")
    client.publish(b"open/x", b"2")
    client.control(controls.PING, b"t")
    assert client.receive_all() == listener.receive_all() == []
    place(ruled, reader, client)
    assert client.receive_all() == [control_packet(controls.PING, b"t")]
    assert listener.receive_all() == [message(b"open/x", b"2")]


def test_another_unit_does_not_get_what_the_rule_allows(ruled: InProcessBus, reader: GroupReader) -> None:
    for path in ("/system.slice/mail.service", "/user.slice/user-1000.slice/user@1000.service/app.slice/web.service", "/docker/1", "/"):
        client = ruled.client(uid=ALICE)
        client.publish(b"web/x")
        client.subscribe(b"web/")
        place(ruled, reader, client, path)
        assert [error_code(packet) for packet in client.receive_all()] == ["EPERM", "EPERM"], path


def test_a_rule_that_denies_applies_to_its_units_and_to_unknown_ones(ruled: InProcessBus, reader: GroupReader) -> None:
    denied = {"/system.slice/bad@1.service": True, "/": True, "/system.slice/good@1.service": False, "/docker/1": False}
    for path, is_denied in denied.items():
        client = ruled.client(uid=ALICE)
        client.publish(b"open/x")
        place(ruled, reader, client, path)
        assert len(client.receive_all()) == is_denied, path


def test_a_user_that_no_rule_about_units_names_waits_for_nothing(ruled: InProcessBus, reader: GroupReader) -> None:
    client = ruled.client(uid=BOB)
    assert client.barrier() == []
    assert reader.requests() == [client.connection], "its unit is shown all the same"


def test_a_unit_that_is_not_needed_now_is_read_only_of_a_connection_that_lasts(bus: InProcessBus, reader: GroupReader) -> None:
    lasting, short = bus.client(uid=ALICE), bus.client(uid=ALICE)
    short.close()
    assert lasting.barrier() == []
    assert requested(bus, reader) == [lasting.connection]


def test_with_a_tap_units_are_read_at_once(bus: InProcessBus, reader: GroupReader) -> None:
    owner = bus.client(uid=0)
    owner.control(controls.TAP_ON, b"")
    assert owner.barrier() == []
    client = bus.client(uid=ALICE)
    assert client.connection in reader.requests()


def test_without_rules_about_units_nobody_waits(bus: InProcessBus, reader: GroupReader) -> None:
    assert bus.client(uid=ALICE).barrier() == []
    assert reader.requests() == []


def test_a_client_that_has_hung_up_is_handled_by_its_unit(ruled: InProcessBus, reader: GroupReader) -> None:
    listener = ruled.client(uid=0)
    listener.control(controls.TAP_ON, b"web/")
    assert listener.barrier() == []
    client = ruled.client(uid=ALICE)
    client.publish(b"web/x", b"last")
    client.close()
    ruled.run()
    assert client.connection in ruled.switch.connections()
    assert listener.receive_all() == []
    place(ruled, reader, client)
    (packet,) = listener.receive_all()
    assert packet.endswith(b"MSG web/x\0last")
    assert client.connection not in ruled.switch.connections()


def test_a_client_that_is_disconnected_meanwhile_is_forgotten(ruled: InProcessBus, reader: GroupReader) -> None:
    client = ruled.client(uid=ALICE)
    ruled.switch.disconnect(client.connection)
    ruled.run()
    place(ruled, reader, client)
    assert ruled.switch.connections() == []
    ruled.client(uid=ALICE).close()


def test_after_its_time_a_client_is_handled_as_one_of_an_unknown_unit(
    make_bus: MakeBus, reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Units.__init__, "__kwdefaults__", {"wait_seconds": 0.02})
    bus = make_bus(RULES)
    client = bus.client(uid=ALICE)
    client.publish(b"web/x")
    client.publish(b"open/x")
    end = time.monotonic() + SECONDS
    received: list[bytes] = []
    while len(received) < 2 and time.monotonic() < end:
        bus.switch.turn(100)
        received += client.receive_all()
    assert [error_code(packet) for packet in received] == ["EPERM", "EPERM"]
    assert bus.client(uid=0).ask_json(controls.STATS)["control"]["late_units"] == 1  # type: ignore[index]
    # New rules do not make it wait again.
    bus.broker.reconfigure(RULES, BusOwnership(0, None, frozenset({0})))
    while not bus.broker.is_settled:
        bus.broker.settle()
    client.publish(b"web/x")
    assert [error_code(packet) for packet in client.barrier()] == ["EPERM"]
    # The answer comes after all, and changes the rights.
    place(bus, reader, client)
    client.subscribe(b"web/")
    client.publish(b"web/x")
    assert client.barrier() == [message(b"web/x")]


def test_a_reload_with_a_rule_holds_a_client_whose_unit_is_not_known_yet(make_bus: MakeBus, reader: GroupReader) -> None:
    bus = make_bus()
    client = bus.client(uid=ALICE)
    assert client.barrier() == []
    bus.broker.reconfigure(RULES, BusOwnership(0, None, frozenset({0})))
    client.publish(b"web/x")
    assert client.receive_all() == []
    assert requested(bus, reader) == [client.connection]
    place(bus, reader, client)
    assert client.barrier() == []


def test_a_reload_applies_rules_to_the_known_unit(make_bus: MakeBus, reader: GroupReader) -> None:
    bus = make_bus()
    inside, outside = bus.client(uid=ALICE), bus.client(uid=ALICE)
    assert requested(bus, reader, 2) == [inside.connection, outside.connection]
    for client, path in ((inside, "/system.slice/web.service"), (outside, "/system.slice/mail.service")):
        place(bus, reader, client, path)
        client.subscribe(b"web/")
        assert client.barrier() == []
    bus.broker.reconfigure(RULES, BusOwnership(0, None, frozenset({0})))
    while not bus.broker.is_settled:
        bus.broker.settle()
    assert inside.barrier() == []
    assert [error_code(packet) for packet in outside.barrier()] == ["EPERM"]


# -- what is shown


def test_connections_and_events_show_the_unit(ruled: InProcessBus, reader: GroupReader) -> None:
    reader.number = 8
    watcher = ruled.client(uid=0)
    watcher.subscribe(b"!/event/")
    tap = ruled.client(uid=BOB)
    tap.control(controls.TAP_ON, b"!/event/")
    assert tap.barrier() == []
    watcher.barrier()
    reader.number = 9
    first = ruled.client(uid=ALICE)
    place(ruled, reader, first, "/user.slice/user-1000.slice/user@1000.service/app.slice/x.service", number=9)
    second = ruled.client(uid=ALICE)
    shown = {"unit": "user@1000.service", "slice": "user-1000.slice", "user_unit": "x.service"}
    listed = {each["id"]: each for each in watcher_list(watcher)}
    for client in (first, second):
        assert {name: listed[client.connection][name] for name in shown} == shown
    assert {listed[tap.connection][name] for name in shown} == {None}
    lines = [packet for packet in tap.receive_all() if b'"unit"' in packet]
    # The unit of the first one was read after its connect, that of the second one was known by then.
    assert [b'"kind":"unit"' in line for line in lines] == [True, False]
    assert b'"kind":"connect"' in lines[1]
    assert all(b'"unit":"user@1000.service","slice":"user-1000.slice","user_unit":"x.service"' in line for line in lines)


def watcher_list(client: BusClient) -> list[dict[str, object]]:
    """Return the connections that *client* sees, without the events that precede them."""
    client.receive_all()
    page = client.ask_json(controls.CONNECTIONS)
    found: list[dict[str, object]] = page["connections"]  # type: ignore[assignment]
    return found


def test_presence_events_have_no_key_about_units(ruled: InProcessBus, reader: GroupReader) -> None:
    """Earlier clients take an event that they do not know for an invalid one."""
    watcher = ruled.client(uid=0)
    watcher.subscribe(b"!/event/")
    watcher.barrier()
    client = ruled.client(uid=ALICE)
    place(ruled, reader, client)
    assert [packet.partition(b"\0")[0] for packet in watcher.receive_all()] == [b"MSG !/event/connect/%d" % client.connection]
    client.subscribe(b"a")
    client.barrier()
    (packet,) = watcher.receive_all()
    assert b'"unit":"web.service"' in packet


def test_the_journal_names_the_unit(ruled: InProcessBus, reader: GroupReader) -> None:
    client = ruled.client(uid=ALICE)
    place(ruled, reader, client, "/system.slice/mail.service")
    client.publish(b"web/x")
    client.barrier()
    (record,) = [each for each in ruled.recorded() if each.message.name == "policy-refused"]
    assert record.unit == "mail.service"


def test_an_unreadable_unit_is_counted_and_logged_once(ruled: InProcessBus, reader: GroupReader) -> None:
    for failure in (errno.ESRCH, errno.ENOENT, errno.ENOENT):
        place(ruled, reader, ruled.client(uid=ALICE), failure=failure)
    control = ruled.client(uid=0).ask_json(controls.STATS)["control"]
    assert control["unknown_units"] == 3  # type: ignore[index]
    assert [each.message.name for each in ruled.recorded()] == ["units-unreadable"]


def test_an_unreadable_unit_is_not_logged_if_no_rule_needs_it(bus: InProcessBus, reader: GroupReader) -> None:
    client = bus.client(uid=ALICE)
    assert requested(bus, reader) == [client.connection]
    place(bus, reader, client, failure=errno.ENOENT)
    assert bus.recorded() == []


def test_the_unit_can_be_explained(ruled: InProcessBus, reader: GroupReader) -> None:
    client = ruled.client(uid=ALICE)
    place(ruled, reader, client)
    own = client.ask_json(controls.EXPLAIN, b"%d\0publish\0web/x" % ALICE)
    assert (own["allowed"], own["unit"]) == (True, "web.service")
    other = client.ask_json(controls.EXPLAIN, b"%d\0publish\0web/x\0mail.service" % ALICE)
    assert (other["allowed"], other["unit"]) == (False, "mail.service")
