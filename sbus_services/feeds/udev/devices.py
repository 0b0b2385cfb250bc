"""Devices and their events as plain values; those that are present, and those that wait. No I/O. Spec: sbus-feed(8), KEYS.

The properties are those of udev's database, not those of events: an event also has properties that describe only what happened. So the
same device read twice yields no message, whether an event or a snapshot was the reason to read it.

Of several waiting events with one key, the newest replaces the older ones, which it counts. A device that changes a thousand times a
second then costs one message for each time that the others had theirs.

The kernel chooses most names, but a user can choose some, such as that of a network interface. So names are escaped as in the netlink
feed, and each name is exactly one segment of a key.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sbus.protocol.errors import SbusError
from sbus.protocol.keys import MAX_KEY_BYTES
from sbus_services.feeds.netlink.entries import escape
from sbus_services.feeds.netlink.network_state import EventKind

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


@dataclass(frozen=True, slots=True)
class StateMessage:
    """One message about a device: present, changed, or removed with its last properties."""

    kind: EventKind
    device: Device


class DeviceState:
    """The devices, by their paths.

    ``is_uncertain`` is set when the devices may differ from those of the machine. Then :meth:`reconcile` is due, and clears it.
    """

    def __init__(self) -> None:
        self._devices: dict[str, Device] = {}
        self.is_uncertain = False

    def __len__(self) -> int:
        """Return the number of devices."""
        return len(self._devices)

    def update(self, path: str, device: Device | None) -> list[StateMessage]:
        """Note that *device* is at *path*, or None; return the messages to publish."""
        before = self._devices.pop(path, None)
        messages = []
        if before is not None and (device is None or device.key != before.key):
            messages.append(StateMessage(EventKind.REMOVE, before))
            before = None
        if device is not None:
            self._devices[path] = device
            if before is None:
                messages.append(StateMessage(EventKind.NEW, device))
            elif before.properties != device.properties:
                messages.append(StateMessage(EventKind.CHANGE, device))
        return messages

    def move(self, former_path: str, path: str, device: Device | None) -> list[StateMessage]:
        """Note that a device has moved. Paths of devices below it have changed too, without an event for each."""
        self.is_uncertain = True
        return self.update(former_path, None) + self.update(path, device)

    def reconcile(self, devices: Iterable[Device]) -> list[StateMessage]:
        """Replace the state with *devices*, all that are present, and return the messages to publish: first removals."""
        self.is_uncertain = False
        present = {device.path: device for device in devices}
        gone = [path for path in self._devices if path not in present]
        removed = [message for path in reversed(gone) for message in self.update(path, None)]
        changed = [message for path, device in present.items() for message in self.update(path, device)]
        # A device that takes the name of another: the removal comes first, or the key would end with it.
        return sorted(removed + changed, key=lambda message: message.kind is not EventKind.REMOVE)

    def snapshot(self) -> list[StateMessage]:
        """Return all devices as messages, parents before their children."""
        return [StateMessage(EventKind.SNAPSHOT, self._devices[path]) for path in sorted(self._devices)]


MAX_WAITING = 4_096
"""Most events that wait: further ones wait in the kernel, which reports when it has dropped some."""

_BURST_SECONDS = 0.1
"""The events of this time may be published at once."""


@dataclass(slots=True)
class _Waiting:
    """The newest event of a key, and the number of those that it replaces."""

    event: DeviceEvent
    coalesced: int = 0


class WaitingEvents:
    """Passes on at most *rate* events per second; *now* in its methods is in seconds of a monotonic clock."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._room = max(1.0, rate * _BURST_SECONDS)
        self._tokens = self._room
        self._counted = float("-inf")
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of events that wait."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no more events should be read."""
        return len(self._waiting) >= MAX_WAITING

    def add(self, event: DeviceEvent) -> bool:
        """Add an event; return whether it replaces an older one."""
        found = self._waiting.pop(event.key, None)
        # At the end: of a device that was added, removed and added again, the last event is published last.
        self._waiting[event.key] = _Waiting(event, 0 if found is None else found.coalesced + 1)
        return found is not None

    def take(self, now: float) -> tuple[DeviceEvent, int] | None:
        """Return the next event and the number of older ones that it replaces; None if none may be published yet."""
        self._count(now)
        if not self._waiting or self._tokens < 1.0:
            return None
        self._tokens -= 1.0
        _, waiting = self._waiting.popitem(last=False)
        return waiting.event, waiting.coalesced

    def next_time(self) -> float | None:
        """Return when the next event may be published, None if none waits."""
        if not self._waiting:
            return None
        return self._counted + max(0.0, 1.0 - self._tokens) / self._rate

    def _count(self, now: float) -> None:
        """Note that time has passed."""
        self._tokens = min(self._room, self._tokens + max(0.0, now - self._counted) * self._rate)
        self._counted = now
