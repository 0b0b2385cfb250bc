"""Events and devices as udev has them, by libudev. Source: libudev(3), pyudev.

pyudev is used, and not uevents of pyroute2: udevd sends its messages in a format that only libudev promises to read, as is that of its
database. libudev accepts messages of root alone, by the credentials that the kernel adds to them. Any user may receive them.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Mapping, Sequence

import pyudev

from sbus.protocol.errors import SbusError
from sbus_services.feeds.netlink.sockets import OverrunError
from sbus_services.feeds.udev.devices import Device, DeviceError, DeviceEvent

_SO_RCVBUFFORCE = 33

RECEIVE_BYTES = 4 << 20
"""Receive buffer of the monitor: some thousand events."""


class UdevError(SbusError, OSError):
    """libudev cannot be used."""


class EventMonitor:
    """The messages of udevd, from its creation on, about devices of *subsystems*, or of all if there are none."""

    def __init__(self, context: pyudev.Context, subsystems: Sequence[str], receive_bytes: int) -> None:
        self._monitor = pyudev.Monitor.from_netlink(context, source="udev")
        for subsystem in subsystems:
            self._monitor.filter_by(subsystem)
        with socket.socket(fileno=os.dup(self._monitor.fileno())) as channel:
            try:
                # Exceeds net.core.rmem_max if permitted.
                channel.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive_bytes)
            except PermissionError:
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            # The kernel limits the value silently and doubles it for its own overhead.
            self.receive_bytes = channel.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        self._monitor.start()
        self.undecodable = 0
        """Messages that are invalid, or describe no device."""

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._monitor.fileno()

    def read(self, most: int) -> Iterator[DeviceEvent]:
        """Yield up to *most* waiting events.

        Raises:
            OverrunError: the kernel dropped messages, or libudev cannot read them.
        """
        for _ in range(most):
            try:
                device = self._monitor.poll(timeout=0)
            except ValueError:
                # libudev has read the message, and found it invalid (EINVAL).
                self.undecodable += 1
                continue
            except OSError as wrong:
                # pyudev has no number for the error of a socket that it polls; of netlink sockets it is ENOBUFS.
                name = errno.errorcode.get(wrong.errno or errno.ENOBUFS, str(wrong.errno))
                raise OverrunError(f"the kernel dropped messages, or libudev cannot read them ({name})") from wrong
            if device is None:
                return
            try:
                yield DeviceEvent.of(_properties(device))
            except DeviceError:
                self.undecodable += 1

    def close(self) -> None:
        """Close the socket."""
        # The library closes it with the last reference.
        del self._monitor


class Udev:
    """The devices of this machine, and their events."""

    def __init__(self, subsystems: Sequence[str] = (), receive_bytes: int = RECEIVE_BYTES) -> None:
        """Open libudev.

        Raises:
            UdevError: the library is missing.
        """
        try:
            self._context = pyudev.Context()
        except ImportError as wrong:
            raise UdevError(f"cannot load libudev: {wrong}") from wrong
        self._subsystems = tuple(subsystems)
        self._receive_bytes = receive_bytes
        self.undecodable = 0
        """Devices without a name that is UTF-8."""

    def listen(self) -> EventMonitor:
        """Return a new monitor; the caller closes it. Raises UdevError."""
        try:
            return EventMonitor(self._context, self._subsystems, self._receive_bytes)
        except OSError as wrong:
            raise UdevError(f"cannot receive events of udev: {wrong.strerror or wrong}") from wrong

    def read_devices(self) -> Iterator[Device]:
        """Yield all devices that are present."""
        devices = self._context.list_devices()
        for subsystem in self._subsystems:
            devices.match_subsystem(subsystem)
        for device in devices:
            try:
                yield Device.of(_properties(device))
            except DeviceError:
                self.undecodable += 1

    def read_device(self, path: str) -> Device | None:
        """Return the device at *path*, None if it is not present. It is one that :meth:`read_devices` yields."""
        try:
            return Device.of(_properties(pyudev.Devices.from_path(self._context, path)))
        except (pyudev.DeviceNotFoundError, DeviceError):
            return None


def _properties(device: pyudev.Device) -> Mapping[str, str]:
    """Return the properties of *device*; a value that is not UTF-8 is U+FFFD. Raises DeviceError if a name is not UTF-8."""
    found: dict[str, str] = {}
    try:
        for name in device.properties:
            try:
                found[name] = device.properties[name]
            except UnicodeDecodeError:
                found[name] = "\ufffd"
            except KeyError:
                found[name] = ""
    except UnicodeDecodeError as wrong:
        raise DeviceError("udev reported a property whose name is not UTF-8") from wrong
    return found
