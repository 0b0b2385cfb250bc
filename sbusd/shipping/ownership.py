"""One shipper for each host name in a destination: the object ``hosts/HOST.json`` says which.

An object store has no lock, and PyArrow no conditional request. So the object is written, read back, and read again before each segment
and each index entry is written: of two shippers that start at the same time, at least one finds the other's mark and stops.
"""

from __future__ import annotations

import io
import json
import uuid
from dataclasses import asdict, dataclass
from typing import Self

from sbusd.archive.storage.store import Store
from sbusd.protocol.errors import SbusError
from sbusd.protocol.printable import printable
from sbusd.systemd.machine_identity import machine_identity

HOSTS = "hosts"
"""The folder of these objects."""

_MAX_BYTES = 8 << 10

_READINGS = 3
"""Number of times that a mark is read before it counts as invalid: a failing connection can damage what is read."""

_APPLICATION = uuid.UUID("a26a5a0c6be24d5c97a55f5e8f7ed6a5")
"""Makes the identity of a machine differ from that for other programs."""


class HostTakenError(SbusError):
    """Another shipper has shipped as the same host to the same destination."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A shipper: ``id`` is that of its list, ``identity`` that of its machine; ``machine`` and ``archive`` are for people.

    A copy of a machine can have the same list, but its machine-id(5) should differ.
    """

    id: str
    machine: str
    archive: str
    identity: str

    def __str__(self) -> str:
        names = f"machine {printable(self.machine, 64)} with archive {printable(self.archive, 200)}"
        return f"{names}, id {printable(self.id, 8)}, machine identity {printable(self.identity, 8) or 'unknown'}"

    @classmethod
    def of_this_machine(cls, id_: str, machine: str, archive: str) -> Self:
        """Return the owner with the identity of this machine."""
        return cls(id_, machine, archive, machine_identity(_APPLICATION))

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Return the owner in *content*. Raises ValueError."""
        value = json.loads(content)
        texts = [value.get(name) for name in ("id", "machine", "archive", "identity")] if isinstance(value, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("fields are missing")
        return cls(*texts)


class Ownership:
    """The claim of *owner* to the name *host* in *store*."""

    def __init__(self, store: Store, host: str, owner: Owner) -> None:
        self._store = store
        self._host = host
        self._owner = owner
        self._name = f"{HOSTS}/{host}.json"

    def take(self, listed: int = 0, *, by_force: bool = False) -> None:
        """Write the mark unless it exists; *by_force* replaces another or invalid mark. *listed* segments are shipped already.

        Raises:
            HostTakenError: it is another shipper's; or it is missing although segments are listed, and not *by_force*.
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
        if found is None or (by_force and found != self._owner):
            self._store.put(self._name, io.BytesIO(json.dumps(asdict(self._owner)).encode() + b"\n"))
        self.check()

    def check(self) -> None:
        """Read the mark. Raises HostTakenError, StorageError, OSError."""
        found = self._read()
        if found is None or (found.id, found.identity) != (self._owner.id, self._owner.identity):
            raise HostTakenError(
                f"{self._store.path(self._name)}: host {self._host} is shipped by {found or 'no machine'}; this is {self._owner}."
                " Give one of them another host in recorder.toml and ship.toml. If this machine replaces the other one, or has lost its"
                " list of shipped segments, run sbus-ship --claim once"
            )

    def _read(self) -> Owner | None:
        """Return the owner, None without a mark. Raises HostTakenError if it is invalid."""
        for _ in range(_READINGS):
            try:
                return Owner.from_json(self._store.read(self._name, _MAX_BYTES))
            except FileNotFoundError:
                return None
            except (ValueError, RecursionError):
                continue
        raise HostTakenError(
            f"{self._store.path(self._name)}: invalid mark of a shipper. If no other machine ships as this host, run sbus-ship --claim once"
        )
