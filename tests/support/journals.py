"""Journal files for tests, as journald makes them: written by systemd-journal-remote(8) from the export format."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support import skips

WRITER = Path("/usr/lib/systemd/systemd-journal-remote")
BOOT = "b" * 32
FIRST_SECOND = 1_760_000_000
"""When the entry number 0 was made, in seconds since 1970; each further one is a second later."""

Value = bytes | str | list[bytes]


def require_writer() -> None:
    """Skip unless journal files can be written here."""
    skips.require(WRITER.exists(), "needs systemd-journal-remote: apt-get install systemd-journal-remote", could_run=True)


class JournalFolder:
    """A folder of journal files, to which entries are added, and which can be rotated."""

    def __init__(self, path: Path) -> None:
        require_writer()
        self.path = path
        path.mkdir(exist_ok=True)
        self.active = path / "system.journal"
        self._count = 0
        self._rotations = 0

    def add(
        self,
        *messages: str | bytes,
        unit: str | None = "a.service",
        at: int | None = None,
        boot: str = BOOT,
        shift: int = 0,
        **fields: Value,
    ) -> None:
        """Add an entry for each of *messages*, a second after the one before, or from the second *at* of the *boot* on.

        *shift* is by how many seconds the date is wrong.
        """
        entries = []
        for message in messages:
            second = self._count if at is None else at
            self._count = second + 1
            if at is not None:
                at += 1
            named: dict[str, Value] = {"MESSAGE": message, "PRIORITY": "6", "_PID": "77", "_UID": "1000"}
            if unit is not None:
                named["_SYSTEMD_UNIT"] = unit
            entries.append(export(second, {**named, **fields}, boot, shift))
        command = [str(WRITER), "--output", str(self.active), "-"]
        result = subprocess.run(command, input=b"".join(entries), capture_output=True, check=False, timeout=60)
        assert result.returncode == 0, result.stderr

    def rotate(self) -> Path:
        """Archive the active file, as journald does; the next entry begins a new one. Return the archive."""
        self._rotations += 1
        archive = self.path / f"system@{self._rotations:032x}-{1:016x}-{FIRST_SECOND + self._count:016x}.journal"
        self.active.rename(archive)
        return archive


def export(second: int, fields: Mapping[str, Value], boot: str = BOOT, shift: int = 0) -> bytes:
    """Return one entry in the journal export format."""
    realtime, monotonic = (FIRST_SECOND + second + shift) * 1_000_000, second * 1_000_000 + 1
    head = f"__REALTIME_TIMESTAMP={realtime}\n__MONOTONIC_TIMESTAMP={monotonic}\n_BOOT_ID={boot}\n"
    parts = [head.encode()]
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            data = each.encode() if isinstance(each, str) else each
            parts.append(name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n")
    return b"".join(parts) + b"\n"
