"""The claims of this recorder to names of hosts in an archive that other hosts can share. Spec: sbus-recorder(8)."""

from __future__ import annotations

import hashlib
import secrets
import socket
from pathlib import Path

from sbus_archive.storage.files import NO_ROOM
from sbus_archive.storage.ownership import APPLICATION, HOSTS, Owner, Ownership
from sbus_archive.storage.store import LocalStore
from sbus_programs.systemd.machine_identity import machine_identity


class HostClaims:
    """The claims of one start of the recorder. Two recorders of one name would replace and remove the segments of each other."""

    def __init__(self, archive: Path, spool: Path) -> None:
        """*spool* distinguishes the recorders of one machine: each has its own."""
        # An archive with the spool in it can be moved.
        place = spool.relative_to(archive) if spool.is_relative_to(archive) else spool
        state = hashlib.sha256(str(place).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        names = f"{archive} and spool {spool}"
        self._owner = Owner(state, socket.gethostname(), names, machine_identity(APPLICATION), secrets.token_hex(16))
        self._archive = archive
        self._claimed: dict[str, Ownership] = {}

    def hold(self, host: str) -> None:
        """Claim the name *host*, or make sure that it still belongs to this start: before each change of the archive.

        Raises:
            HostTakenError: another recorder has it.
            OSError: the archive cannot be read or written.
        """
        try:
            if (claimed := self._claimed.get(host)) is not None:
                claimed.hold()
            else:
                ownership = Ownership(LocalStore(self._archive), host, self._owner, self._advice(host))
                ownership.take()
                self._claimed[host] = ownership
        except OSError as error:
            # No other recorder has the name. Without this, retention could not make room on a full disk.
            if error.errno not in NO_ROOM:
                raise

    def _advice(self, host: str) -> str:
        """Return how to end a conflict."""
        return (
            "To run both, give one of them another host in recorder.toml. If no other recorder writes as this host, or this one is to"
            f" replace it, stop the other one, and delete {self._archive / HOSTS / host}.json"
        )
