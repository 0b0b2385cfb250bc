"""Keys and payloads of devices, against a plain model of their escaping."""

from __future__ import annotations

import json
import string
from collections import OrderedDict
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.keys import MAX_KEY_BYTES
from sbus_services.feeds.netlink.network_state import EventKind
from sbus_services.feeds.udev.devices import (
    MAX_WAITING,
    PAYLOAD_BYTES,
    VALUE_CHARACTERS,
    Device,
    DeviceError,
    DeviceEvent,
    DeviceState,
    StateMessage,
    WaitingEvents,
    payload_fields,
)

PLAIN = set(string.ascii_letters + string.digits + "_.-~:@+,=")

NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=80)
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


def model(name: str) -> str:
    """Escape *name* byte by byte."""
    return "".join(chr(byte) if chr(byte) in PLAIN else f"%{byte:02X}" for byte in name.encode())


def properties(path: str, subsystem: str = "block", **more: str) -> dict[str, str]:
    return {"DEVPATH": path, "SUBSYSTEM": subsystem, **more}


@given(subsystem=NAMES, name=NAMES, action=st.sampled_from(["add", "remove", "change", "move", "bind", "unbind"]))
def test_keys_are_as_in_the_model_and_reversible(subsystem: str, name: str, action: str) -> None:
    event = DeviceEvent.of(properties(f"/devices/virtual/{name}", subsystem, ACTION=action))
    shown = name.replace("!", "/")
    assert event.key == f"udev/{model(subsystem)}/{action}/{model(shown)}"
    assert event.device.key == f"udev/{model(subsystem)}/device/{model(shown)}"
    segments = event.key.split("/")
    assert len(segments) == 4
    assert [unquote(each) for each in segments[1:]] == [subsystem, action, shown]
    assert not set(event.key) & set("*!\0")


@given(first=st.tuples(NAMES, NAMES), second=st.tuples(NAMES, NAMES))
def test_different_devices_have_different_keys(first: tuple[str, str], second: tuple[str, str]) -> None:
    devices = [Device.of(properties(f"/devices/{name}", subsystem)) for subsystem, name in (first, second)]
    same = (devices[0].subsystem, devices[0].name) == (devices[1].subsystem, devices[1].name)
    assert (devices[0].key == devices[1].key) == same


def test_slash_in_a_name_is_no_segment() -> None:
    assert Device.of(properties("/devices/pci/cciss!c0d0")).key == "udev/block/device/cciss%2Fc0d0"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"DEVPATH": "/devices/x"},
        {"DEVPATH": "devices/x", "SUBSYSTEM": "block"},
        {"DEVPATH": "/devices/", "SUBSYSTEM": "block"},
        {"DEVPATH": "\ufffd", "SUBSYSTEM": "block"},
        {"DEVPATH": "/devices/" + "*" * MAX_KEY_BYTES, "SUBSYSTEM": "block"},
    ],
)
def test_what_has_no_key_is_an_error(wrong: dict[str, str]) -> None:
    with pytest.raises(DeviceError, match=r"udev reported|too long for a key"):
        Device.of(wrong)


@pytest.mark.parametrize("action", ["", "x" * 33])
def test_an_event_needs_an_action(action: str) -> None:
    with pytest.raises(DeviceError, match="invalid ACTION"):
        DeviceEvent.of(properties("/devices/x", ACTION=action))


@given(st.dictionaries(NAMES, VALUES, max_size=30))
def test_short_properties_are_published_as_they_are(found: dict[str, str]) -> None:
    own = {"event", "time", "coalesced", "cut", "omitted", "generation", "reason"}
    fields = payload_fields(found)
    assert {name: value for name, value in fields.items() if name not in own} == {n: v for n, v in found.items() if n not in own}
    assert fields.get("omitted", 0) == len(own & found.keys())


def test_limits_of_a_payload() -> None:
    long = {f"ID_{number:03}": "\u20ac" * (VALUE_CHARACTERS + number) for number in range(100)}
    fields = payload_fields({**long, "DEVPATH": "/devices/x", "event": "forged", "cut": "forged"})
    assert len(json.dumps(fields)) < PAYLOAD_BYTES + 4_096
    assert fields["DEVPATH"] == "/devices/x", "essential properties come first"
    assert "event" not in fields
    shown = [name for name in fields if name.startswith("ID_")]
    assert shown[0] == "ID_000"
    assert fields["cut"] == shown[1:], "exactly the limit is not cut"
    assert fields["omitted"] == len(long) - len(shown) + 2


def device(path: str, **properties: str) -> Device:
    return Device.of({"DEVPATH": path, "SUBSYSTEM": "net", **properties})


class Subscriber:
    """Follows the messages by their keys."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, str]] = {}

    def follow(self, messages: list[StateMessage]) -> None:
        for message in messages:
            key, found = message.device.key, dict(message.device.properties)
            if message.kind is EventKind.REMOVE:
                assert self.known.pop(key) is not None
                continue
            assert (message.kind is EventKind.NEW) == (key not in self.known)
            assert self.known.get(key) != found, "nothing has changed"
            self.known[key] = found


PATHS = st.sampled_from(["/devices/a/x", "/devices/b/y", "/devices/b/y/z", "/devices/c/w"])
PRESENT = st.dictionaries(PATHS, st.sampled_from(["1", "2"]), max_size=4)


@given(st.lists(st.one_of(PRESENT, st.tuples(PATHS, st.sampled_from([None, "1", "2"])), st.tuples(PATHS, PATHS, st.just("1")))))
def test_a_subscriber_knows_what_is_present(steps: list[object]) -> None:
    state, subscriber = DeviceState(), Subscriber()
    model: dict[str, str] = {}
    for step in steps:
        match step:
            case dict():
                model = dict(step)
                subscriber.follow(state.reconcile([device(path, V=value) for path, value in model.items()]))
                assert not state.is_uncertain
            case (str() as path, str() as after, str() as value):
                model.pop(path, None)
                model[after] = value
                subscriber.follow(state.move(path, after, device(after, V=value)))
                assert state.is_uncertain
            case (str() as path, None):
                model.pop(path, None)
                subscriber.follow(state.update(path, None))
            case (str() as path, str() as value):
                model[path] = value
                subscriber.follow(state.update(path, device(path, V=value)))
        expected = {device(path).key: dict(device(path, V=value).properties) for path, value in model.items()}
        assert subscriber.known == expected
        assert {each.device.key: dict(each.device.properties) for each in state.snapshot()} == expected
        assert len(state) == len(model)


def test_a_name_that_another_device_takes_is_removed_first() -> None:
    state = DeviceState()
    state.reconcile([device("/devices/a/eth0")])
    messages = state.reconcile([device("/devices/b/eth0")])
    assert [(each.kind, each.device.path) for each in messages] == [
        (EventKind.REMOVE, "/devices/a/eth0"),
        (EventKind.NEW, "/devices/b/eth0"),
    ]


def test_a_snapshot_has_parents_before_children() -> None:
    state = DeviceState()
    state.reconcile([device("/devices/a/b/c"), device("/devices/a"), device("/devices/a/b")])
    assert [each.device.path for each in state.snapshot()] == ["/devices/a", "/devices/a/b", "/devices/a/b/c"]


def event(name: str, action: str = "change", number: int = 0) -> DeviceEvent:
    return DeviceEvent.of({"DEVPATH": f"/devices/{name}", "SUBSYSTEM": "x", "ACTION": action, "SEQNUM": str(number)})


def taken(waiting: WaitingEvents, now: float) -> list[tuple[str, str, int]]:
    found = []
    while (item := waiting.take(now)) is not None:
        found.append((item[0].device.name, item[0].action, item[1]))
    return found


def test_a_rate_is_not_exceeded_and_next_time_is_when_one_is_due() -> None:
    waiting = WaitingEvents(10)
    for number in range(30):
        assert not waiting.add(event(str(number)))
    now = 100.0
    found = [taken(waiting, now)]
    while (due := waiting.next_time()) is not None:
        assert due > now
        assert taken(waiting, now + (due - now) / 2) == []
        now = due + 1e-6
        found.append(taken(waiting, now))
    assert all(len(each) == 1 for each in found)
    assert 2.8 < now - 100.0 < 3.0
    assert [each[0][0] for each in found] == [str(number) for number in range(30)]


def test_the_newest_event_of_a_key_replaces_older_ones_and_takes_their_place_at_the_end() -> None:
    waiting = WaitingEvents(1_000)
    for action in ("add", "remove", "add"):
        waiting.add(event("a", action))
    waiting.add(event("b", "add"))
    assert taken(waiting, 1.0) == [("a", "remove", 0), ("a", "add", 1), ("b", "add", 0)]
    assert waiting.next_time() is None


def test_it_is_full_at_its_limit() -> None:
    waiting = WaitingEvents(1)
    for number in range(MAX_WAITING - 1):
        waiting.add(event(str(number)))
    was_full = waiting.is_full
    waiting.add(event("last"))
    assert (was_full, waiting.is_full) == (False, True)
    assert waiting.add(event("last")), "one that replaces another needs no room"
    assert len(waiting) == MAX_WAITING


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "remove", "change"]))))
def test_nothing_is_lost_but_what_is_counted(given_events: list[tuple[str, str]]) -> None:
    waiting = WaitingEvents(1)
    model: OrderedDict[tuple[str, str], int] = OrderedDict()
    for name, action in given_events:
        before = model.pop((name, action), None)
        model[name, action] = 0 if before is None else before + 1
        assert waiting.add(event(name, action)) == (before is not None)
    found, now = [], 0.0
    while len(waiting):
        now += 1.0
        found += taken(waiting, now)
    assert found == [(name, action, count) for (name, action), count in model.items()]
    assert sum(count + 1 for _, _, count in found) == len(given_events)
