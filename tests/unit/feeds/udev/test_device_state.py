"""The devices that are present: what the messages say leads a subscriber to the same devices, whatever happens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbusd.feeds.netlink.network_state import EventKind
from sbusd.feeds.udev.device_state import DeviceState, StateMessage
from sbusd.feeds.udev.devices import Device


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
