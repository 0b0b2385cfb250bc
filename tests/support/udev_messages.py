"""A udevd without rules for tests: it passes events of the kernel on to libudev, in a network namespace of their own.

libudev reads these messages as it reads those of systemd-udevd(8), so the feed under test is the real one.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress

from pyroute2 import netns

KERNEL_GROUP, UDEV_GROUP = 1, 2
_PROTOCOL = 15  # NETLINK_KOBJECT_UEVENT
_MAGIC = 0xFEEDCAFE
_HEADER = struct.Struct("=8s4s3I4s4s8s")
_MASK = 0xFFFFFFFF


def string_hash(text: bytes) -> int:
    """Return MurmurHash2 of *text*, by which the kernel's filter for libudev compares subsystems."""
    factor, found = 0x5BD1E995, len(text)
    whole = len(text) - len(text) % 4
    for (word,) in struct.iter_unpack("<I", text[:whole]):
        word = word * factor & _MASK  # noqa: PLW2901 (the algorithm's own steps)
        found = (found * factor ^ ((word ^ word >> 24) * factor)) & _MASK
    if tail := text[whole:]:
        found = (found ^ int.from_bytes(tail, "little")) * factor & _MASK
    found = (found ^ found >> 13) * factor & _MASK
    return found ^ found >> 15


def udev_message(properties: Mapping[str, str | bytes], magic: int = _MAGIC) -> bytes:
    """Return the message of udevd about a device."""
    body = b"".join(b"%b=%b\0" % (name.encode(), os.fsencode(value)) for name, value in properties.items())
    subsystem, kind = (
        string_hash(os.fsencode(properties[name])).to_bytes(4, "big") if name in properties else bytes(4)
        for name in ("SUBSYSTEM", "DEVTYPE")
    )
    head = _HEADER.pack(b"libudev\0", magic.to_bytes(4, "big"), _HEADER.size, _HEADER.size, len(body), subsystem, kind, bytes(8))
    return head + body


def uevent_socket(groups: int = 0) -> socket.socket:
    """Return a socket for messages about devices, in the network namespace of the process."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _PROTOCOL)
    made.bind((0, groups))
    return made


class DeviceNamespace:
    """A network namespace in which events of the kernel have the form of udevd's. Call :meth:`close` at the end."""

    def __init__(self, name: str) -> None:
        self.name = name
        subprocess.run(["ip", "netns", "add", name], check=True, timeout=30)
        netns.pushns(name)
        try:
            self._kernel, self._udev = uevent_socket(KERNEL_GROUP), uevent_socket()
        finally:
            netns.popns()
        self._kernel.settimeout(0.1)
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._pass_on)
        self._thread.start()

    def ip(self, *command: str) -> None:
        """Change links."""
        subprocess.run(["ip", "-n", self.name, *command], check=True, timeout=30)

    def entering(self) -> list[str]:
        """Return the beginning of a command line that runs a program in the namespace, with a /sys of its own."""
        return ["ip", "netns", "exec", self.name]

    def send(self, message: bytes) -> None:
        """Send a message as root."""
        self._udev.sendto(message, (0, UDEV_GROUP))

    def connected(self) -> socket.socket:
        """Return a socket whose messages go to libudev, for processes that inherit it; the caller closes it."""
        netns.pushns(self.name)
        try:
            made = uevent_socket()
        finally:
            netns.popns()
        made.connect((0, UDEV_GROUP))
        return made

    def close(self) -> None:
        """End it."""
        self._is_ended.set()
        self._thread.join()
        self._kernel.close()
        self._udev.close()
        subprocess.run(["ip", "netns", "delete", self.name], check=True, timeout=30)

    def _pass_on(self) -> None:
        """Pass events of the kernel on until the end."""
        while not self._is_ended.is_set():
            with suppress(TimeoutError):
                _, *fields = self._kernel.recv(1 << 16).split(b"\0")
                pairs = (field.partition(b"=") for field in fields if field)
                with suppress(ConnectionRefusedError):  # without a listener
                    self.send(udev_message({name.decode(): value for name, _, value in pairs}))
