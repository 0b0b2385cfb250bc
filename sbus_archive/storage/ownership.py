"""One program for each host name in an archive: the object ``hosts/HOST.json`` says which recorder or shipper writes as this host.

An object store has no lock, a shared file system perhaps none that works, and PyArrow no conditional request. So the object is written,
read back, and read again before each change: of two programs that start at the same time, at least one finds the other's mark and stops.
"""

from __future__ import annotations

import io
import json
import uuid
from dataclasses import asdict, dataclass
from typing import Self

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_archive.storage.store import FileStore

HOSTS = "hosts"
"""The folder of these objects."""

APPLICATION = uuid.UUID("a26a5a0c6be24d5c97a55f5e8f7ed6a5")
"""For :func:`sbus_programs.systemd.machine_identity.machine_identity`: other programs get another identity of a machine."""

_MAX_BYTES = 8 << 10

_READINGS = 3
"""Number of times that a mark is read before it counts as invalid: a failing connection can damage what is read."""


class HostTakenError(SbusError):
    """Another recorder or shipper writes as the same host to the same archive."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A recorder or shipper: ``id`` is that of its state, ``identity`` that of its machine; ``machine`` and ``archive`` are for people.

    A copy of a machine can have the same state, but its machine-id(5) should differ. If it does not, ``run`` differs, which is new for each
    start; it is empty if the program does not distinguish its starts.
    """

    id: str
    machine: str
    archive: str
    identity: str
    run: str = ""

    def __str__(self) -> str:
        names = f"machine {printable(self.machine, 64)} with archive {printable(self.archive, 200)}"
        return f"{names}, id {printable(self.id, 8)}, machine identity {printable(self.identity, 8) or 'unknown'}"

    def is_same_program(self, other: Owner) -> bool:
        """Return whether *other* is this program, perhaps an earlier start of it."""
        return (self.id, self.identity) == (other.id, other.identity)

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Return the owner in *content*. Raises ValueError."""
        value = json.loads(content)
        texts = [value.get(name) for name in ("id", "machine", "archive", "identity")] if isinstance(value, dict) else [None]
        texts.append(value.get("run", "") if isinstance(value, dict) else None)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("fields are missing")
        return cls(*texts)


class Ownership:
    """The claim of *owner* to the name *host* in *store*; *advice* says how a program replaces the owner on purpose."""

    def __init__(self, store: FileStore, host: str, owner: Owner, advice: str) -> None:
        self._store = store
        self._host = host
        self._owner = owner
        self._advice = advice
        self._name = f"{HOSTS}/{host}.json"

    def take(self, listed: int = 0, *, by_force: bool = False) -> None:
        """Write the mark unless another program has it; *by_force* replaces another or invalid mark.

        *listed* segments are shipped already.

        Raises:
            HostTakenError: it is another program's; or it is missing although segments are listed, and not *by_force*.
            StorageError, OSError: the store cannot be used.
        """
        try:
            found = self._read()
        except HostTakenError:
            if not by_force:
                raise
            found = None
        if found is None and listed and not by_force:
            raise HostTakenError(
                f"{self._store.path(self._name)}: missing, although {listed} segments are listed as shipped."
                " The destination is another one, or was emptied. Move the list away to ship all segments again;"
                " if only this object was lost, run sbus-ship --claim once"
            )
        is_earlier_start = found is not None and self._owner.is_same_program(found) and found.run != self._owner.run
        if found is None or is_earlier_start or (by_force and found != self._owner):
            self._write()
        self.check()

    def hold(self) -> None:
        """Write the mark again if it is missing. Raises HostTakenError if another program has it, StorageError, OSError."""
        if self._read() is None:
            self._write()
        self.check()

    def check(self) -> None:
        """Read the mark. Raises HostTakenError, StorageError, OSError."""
        found = self._read()
        if found is not None and self._owner.is_same_program(found):
            if found.run == self._owner.run:
                return
            reason = f"{found}, which started later and has the identity of this one, as a copy of a machine has"
        else:
            reason = f"{found or 'no machine'}; this is {self._owner}"
        raise HostTakenError(f"{self._store.path(self._name)}: host {self._host} belongs to {reason}. {self._advice}")

    def _write(self) -> None:
        """Write the mark. Raises StorageError, OSError."""
        self._store.put(self._name, io.BytesIO(json.dumps(asdict(self._owner)).encode() + b"\n"))

    def _read(self) -> Owner | None:
        """Return the owner, None without a mark. Raises HostTakenError if it is invalid."""
        for _ in range(_READINGS):
            try:
                return Owner.from_json(self._store.read(self._name, _MAX_BYTES))
            except FileNotFoundError:
                return None
            except (ValueError, RecursionError):
                continue
        raise HostTakenError(f"{self._store.path(self._name)}: invalid mark of the owner of host {self._host}. {self._advice}")
