"""The devices that are present, and the messages that follow from their changes; without I/O and clock.

The properties are those of udev's database, not those of events: an event also has properties that describe only what happened. So the
same device read twice yields no message, whether an event or a snapshot was the reason to read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sbusd.feeds.netlink.network_state import EventKind
from sbusd.feeds.udev.devices import Device


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
