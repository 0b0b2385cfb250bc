"""Devices and their events as plain values: their keys, and their payloads. No I/O. Spec: sbus-feed(8), KEYS.

The kernel chooses most names, but a user can choose some, such as that of a network interface. So names are escaped as in the netlink
feed, and each name is exactly one segment of a key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sbusd.feeds.netlink.entries import escape
from sbusd.protocol.errors import SbusError
from sbusd.protocol.keys import MAX_KEY_BYTES

HEAD = "udev/"
"""The beginning of all keys of the feed."""

PRESENT = "device"
"""The segment of keys of present devices that is the action in keys of events; the kernel has no action of this name."""

VALUE_CHARACTERS = 4_096
"""Longest published value of a property; the kernel's own have at most 2048 bytes."""

PAYLOAD_BYTES = 64 << 10
"""Most bytes of the properties in a payload, as JSON."""

_ESSENTIAL = ("ACTION", "DEVPATH", "SUBSYSTEM", "DEVNAME", "DEVTYPE", "DRIVER", "SEQNUM", "DEVPATH_OLD", "INTERFACE", "MAJOR", "MINOR")
"""These are the last to be omitted from a payload that is too long."""

_RESERVED = frozenset({"event", "time", "coalesced", "cut", "omitted", "generation", "reason"})
"""The feed's own fields. Rules of udev can set a property of any name."""


class DeviceError(SbusError, ValueError):
    """The properties do not describe a device, or a device that has no key."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device and its properties. ``path`` is its place under ``/sys``, which identifies it."""

    path: str
    subsystem: str
    name: str
    properties: Mapping[str, str]

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Device:
        """Return the device that *properties* describe.

        Raises:
            DeviceError: they lack DEVPATH or SUBSYSTEM, or the key would be too long.
        """
        path, subsystem = properties.get("DEVPATH", ""), properties.get("SUBSYSTEM", "")
        # sysfs has no slash in names, and shows it as "!".
        name = path.rpartition("/")[2].replace("!", "/")
        if not path.startswith("/") or not name or not subsystem:
            raise DeviceError(f"udev reported a device without {'SUBSYSTEM' if name else 'DEVPATH'}: {path or subsystem!r}")
        found = cls(path, subsystem, name, properties)
        if len(found.event_key("x" * 32)) > MAX_KEY_BYTES:
            raise DeviceError(f"the name of the device is too long for a key: {path[:256]!r}")
        return found

    @property
    def key(self) -> str:
        """The key of the device while it is present, ``udev/<subsystem>/device/<name>``."""
        return self.event_key(PRESENT)

    def event_key(self, action: str) -> str:
        """Return ``udev/<subsystem>/<action>/<name>``."""
        return f"{HEAD}{escape(self.subsystem)}/{escape(action)}/{escape(self.name)}"


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """What udev has reported about a device."""

    action: str
    device: Device

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> DeviceEvent:
        """Return the event that *properties* describe. Raises DeviceError."""
        action = properties.get("ACTION", "")
        if not action or len(action) > 32:
            raise DeviceError(f"udev reported an event with an invalid ACTION: {action[:64]!r}")
        return cls(action, Device.of(properties))

    @property
    def key(self) -> str:
        """The key of the event."""
        return self.device.event_key(self.action)

    @property
    def former_path(self) -> str:
        """The path before a move, empty for other events."""
        return self.device.properties.get("DEVPATH_OLD", "")


def payload_fields(properties: Mapping[str, str]) -> dict[str, object]:
    """Return *properties* for a payload, within the limits; ``cut`` lists shortened ones, and ``omitted`` counts those left out."""
    names = sorted(properties, key=lambda name: (_ESSENTIAL.index(name) if name in _ESSENTIAL else len(_ESSENTIAL), name))
    fields: dict[str, object] = {}
    cut: list[str] = []
    omitted, room = 0, PAYLOAD_BYTES
    for name in names:
        value = properties[name]
        text = value[:VALUE_CHARACTERS]
        room_after = room - len(json.dumps(name)) - len(json.dumps(text)) - 2
        if name in _RESERVED or room_after < 0:
            omitted += 1
            continue
        room = room_after
        fields[name] = text
        if len(text) < len(value):
            cut.append(name)
    return {**fields, **({"cut": cut} if cut else {}), **({"omitted": omitted} if omitted else {})}
