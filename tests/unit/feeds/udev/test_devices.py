"""Keys and payloads of devices, against a plain model of their escaping."""

from __future__ import annotations

import json
import string
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.feeds.udev.devices import PAYLOAD_BYTES, VALUE_CHARACTERS, Device, DeviceError, DeviceEvent, payload_fields
from sbusd.protocol.keys import MAX_KEY_BYTES

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
