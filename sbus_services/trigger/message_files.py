"""The messages that units read: files that only the user of the trigger and its service manager can read.

The folder ``<unit>`` has two files. ``payload`` is the payload. ``environment`` has assignments, also for a shell. The service manager
reads them for the unit, also for one with another ``User=``: with ``EnvironmentFile=`` and ``LoadCredential=``, or as standard input if
the name of the unit has a backslash, which the other two do not accept.
"""

from __future__ import annotations

import shutil
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from sbus_services.trigger.rule_state import Firing

KEPT_SECONDS = 60.0
"""How long the files remain after the job of the unit: a service of Type=simple may open them after its job has ended."""

MAX_UNITS = 256
"""Maximum number of units that have files."""

MAX_BYTES = 64 << 20
"""Maximum size of all payloads: the files are in memory."""

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 !#$%&()*+,-./:;<=>?@[]^_`{|}~")
"""Bytes that a value between single quotes may have, systemd.exec(5): printable ASCII without the quotes and the backslash."""


class NoRoomError(Exception):
    """Too many units have files that they may still read."""


class MessageFiles:
    """The files in *folder*, which must not exist for others; *clock* counts seconds."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._sizes: dict[str, int] = {}
        self._finished: OrderedDict[str, float] = OrderedDict()

    def open(self) -> None:
        """Create the folder. Files of an earlier trigger remain as long as after a job that ends now. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        for each in self._folder.iterdir():
            if each.is_symlink() or not each.is_dir():
                each.unlink()
            else:
                self._sizes[each.name] = sum(file.stat().st_size for file in each.iterdir())
                self._finished[each.name] = self._clock()

    def write(self, firing: Firing, messages: int) -> None:
        """Write the files for a unit that will be started, for the newest of *messages*.

        Raises:
            NoRoomError: too many other units have files.
            OSError: they cannot be written.
        """
        self._finished.pop(firing.unit, None)
        self._make_room(firing)
        folder = self._folder / firing.unit
        folder.mkdir(mode=0o700, exist_ok=True)
        self._sizes[firing.unit] = len(firing.payload)
        _replace(folder / "payload", firing.payload)
        _replace(folder / "environment", environment(firing, messages))

    def finished(self, unit: str) -> None:
        """Note that the job of *unit* has ended."""
        if unit in self._sizes:
            self._finished[unit] = self._clock()
            self._finished.move_to_end(unit)

    def sweep(self) -> None:
        """Remove the files of jobs that ended long enough ago."""
        now = self._clock()
        while self._finished and next(iter(self._finished.values())) <= now - KEPT_SECONDS:
            self._remove_oldest()

    def _make_room(self, firing: Firing) -> None:
        """Remove files of finished jobs until there is room. Raises NoRoomError."""
        others = {name: size for name, size in self._sizes.items() if name != firing.unit}
        count, size = len(others), sum(others.values()) + len(firing.payload)
        while count >= MAX_UNITS or size > MAX_BYTES:
            if not self._finished:
                raise NoRoomError(f"{count} units have not yet read their messages, which have {size} bytes in total")
            count -= 1
            size -= self._remove_oldest()

    def _remove_oldest(self) -> int:
        """Remove the files of the job that ended first; return the size of the payload."""
        unit, _ = self._finished.popitem(last=False)
        shutil.rmtree(self._folder / unit, ignore_errors=True)
        return self._sizes.pop(unit, 0)


def environment(firing: Firing, messages: int) -> bytes:
    r"""Return the content of ``environment``. No byte of a message ends a value: those that could are written as ``\xNN``."""
    values: dict[str, bytes] = {"SBUS_RULE": firing.rule.title.encode(), "SBUS_KEY": firing.key, "SBUS_MESSAGES": b"%d" % messages}
    if firing.sender is not None:
        for name in ("uid", "gid", "pid"):
            values[f"SBUS_SENDER_{name.upper()}"] = b"%d" % getattr(firing.sender, name)
        if firing.sender.voucher is not None:
            values["SBUS_VOUCHER_UID"] = b"%d" % firing.sender.voucher
    return b"".join(b"%b='%b'\n" % (name.encode(), _quoted(value)) for name, value in values.items())


def _quoted(value: bytes) -> bytes:
    """Return *value* for a place between single quotes."""
    return b"".join(bytes([byte]) if byte in _SAFE else b"\\x%02x" % byte for byte in value)


def _replace(file: Path, content: bytes) -> None:
    """Write *content* into *file*, which has the old or the new content at each time. Raises OSError."""
    new = file.with_name(f".{file.name}.new")
    new.write_bytes(content)
    new.replace(file)
