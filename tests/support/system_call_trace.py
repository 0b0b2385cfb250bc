"""Files as on a disk that loses all writes that were not synchronized, from the system calls of a process in strace(1)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = ("strace", "-D", "-ff", "-ttt", "-T", "-y", "-xx", "-s", "500000", "-e", "trace=pwrite64,fsync,fdatasync,ftruncate,sendto")
"""strace, which leaves the process id to the program: add ``-o`` and a path, and the program."""

_CALL = re.compile(r'^(\d+\.\d+) (\w+)\(\d+<([^>]*)>(?:, "([^"]*)")?(?:\.\.\.)?(?:, (.*?))?\) += (-?\d+).*<(\d+\.\d+)>$')


@dataclass(frozen=True)
class SystemCall:
    """A system call that has succeeded: ``path`` is that of its descriptor, ``rest`` are the arguments after ``data``."""

    begin: float
    end: float
    name: str
    path: str
    data: bytes
    rest: str


def traced_calls(folder: Path, head: str) -> list[SystemCall]:
    """Return the calls in all files of *folder* whose names begin with *head*, in the order in which they took effect.

    A sync has its effect at its end, everything else at its begin: so no order is assumed that could hide an error.
    """
    calls = [call for file in folder.glob(f"{head}.*") for call in _calls(file)]
    return sorted(calls, key=lambda call: call.end if call.name in {"fsync", "fdatasync"} else call.begin)


def _calls(file: Path) -> Iterator[SystemCall]:
    for line in file.read_text("ascii", "replace").splitlines():
        if (found := _CALL.match(line)) is None or found[6].startswith("-"):
            continue
        begin, name, path, data, rest, _, seconds = found.groups()
        yield SystemCall(float(begin), float(begin) + float(seconds), name, _bytes(path).decode(), _bytes(data or ""), rest or "")


def _bytes(text: str) -> bytes:
    """Return the bytes of a text with \\xNN for each of them, or as it is."""
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else text.encode()


@dataclass
class Disk:
    """What is on the disk: the writes to each file that were synchronized. Names are there at once."""

    files: defaultdict[str, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    _waiting: defaultdict[str, list[SystemCall]] = field(default_factory=lambda: defaultdict(list))

    def apply(self, call: SystemCall) -> None:
        """Perform *call*."""
        if call.name in {"pwrite64", "ftruncate"}:
            self._waiting[call.path].append(call)
        elif call.name in {"fsync", "fdatasync"}:
            for each in self._waiting.pop(call.path, []):
                self._write(each)

    def _write(self, call: SystemCall) -> None:
        content = self.files[call.path]
        if call.name == "ftruncate":
            size = int(call.rest)
            del content[size:]
            content.extend(bytes(size - len(content)))
            return
        offset = int(call.rest.rpartition(", ")[2])
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(call.data)] = call.data

    def save(self, folder: Path) -> None:
        """Write the files to *folder*."""
        folder.mkdir()
        for path, content in self.files.items():
            (folder / Path(path).name).write_bytes(content)
