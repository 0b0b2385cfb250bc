"""C programs that use ``clients/c/sbus.h``: compiled with the sanitizers, and driven by lines on their standard input."""

from __future__ import annotations

import functools
import hashlib
import os
import select
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sbus.protocol.packets import LENGTH_BYTES
from tools.packages import cache
from tools.stage import ROOT

INCLUDE = ROOT / "clients" / "c"
SOURCE = Path(__file__).parent / "c_client"
SHARED = (SOURCE / "actions.c", SOURCE / "rpc.c", SOURCE / "blobs.c")
"""What is linked to each program."""

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wshadow")
AS_C = ("gcc", "-std=c99", *WARNINGS, "-Wconversion", "-Wstrict-prototypes")
AS_CXX = ("g++", "-x", "c++", "-std=c++11", *WARNINGS)
SANITIZED = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

_KEPT = 64
"""How many programs of one name are kept: several commands, of several branches."""

TIMEOUT_SECONDS = 60.0
"""When a line that has not come is a failure; no test waits that long when it passes."""


def compile_program(sources: Sequence[Path], target: Path, command: Sequence[str] = (*AS_C, *SANITIZED)) -> Path:
    """Compile *sources* with the header into the program *target*, and return it. A warning is a failure.

    A program that was compiled from the same text by the same command is copied instead: it takes several seconds of processor time.
    """
    assert shutil.which(command[0]), f"{command[0]} is missing: run make prepare-test"
    parts = [_version(command[0]), *(word.encode() for word in command)]
    headers = [*SOURCE.glob("*.h"), *(path for path in INCLUDE.rglob("*") if path.is_file())]
    for path in (*sources, *sorted(headers)):
        parts += [path.name.encode(), path.read_bytes()]
    digest = hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).hexdigest()

    def make(folder: Path) -> None:
        folder.mkdir()
        words = [*command, f"-I{INCLUDE}", "-o", str(folder / "program"), *map(str, sources)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    shutil.copy(cache.kept(f"c-{target.name}", digest, make, limit=_KEPT) / "program", target)
    return target


@functools.cache
def _version(compiler: str) -> bytes:
    """Return what a compiler says about itself."""
    return subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout


def client_program(name: str, folder: Path) -> Path:
    """Compile ``c_client/<name>.c`` into *folder*, with its other translation units."""
    return compile_program([SOURCE / f"{name}.c", *SHARED], folder / name)


@dataclass(frozen=True, slots=True)
class Shown:
    """A packet as ``actions.c`` writes it."""

    kind: str
    key: bytes = b""
    payload: bytes = b""
    count: int = 0
    error: int = 0
    has_payload: bool = False
    token: bytes = b""
    sender: tuple[int, int, int, int, bytes, bytes] | None = None
    """Connection, uid, gid, pid, credentials, origin; None if the bus has not named it."""
    group: bytes = b""
    recipients: bytes = b""


def shown(line: str) -> Shown:
    """Return the packet in *line*, or the word alone."""
    kind, *rest = line.split("\t")
    if len(rest) < 8:
        return Shown(kind)
    key, payload, token, group, recipients = (bytes.fromhex(rest[place]) for place in (0, 1, 5, 6, 7))
    sender = None
    if len(rest) > 8:
        number, uid, gid, pid = map(int, rest[8:12])
        sender = (number, uid, gid, pid, bytes.fromhex(rest[12]), bytes.fromhex(rest[13]))
    return Shown(kind, key, payload, int(rest[2]), int(rest[3]), rest[4] == "1", token, sender, group, recipients)


class LineProgram:
    """A running program that writes lines for what it gets on standard input."""

    def __init__(self, program: Path, env: dict[str, str] | None = None, pass_fds: Sequence[int] = ()) -> None:
        self.process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, bufsize=0, pass_fds=pass_fds
        )
        self._data = b""

    def write(self, data: bytes) -> None:
        """Write *data* to its standard input."""
        assert self.process.stdin is not None
        rest = memoryview(data)
        while rest:
            rest = rest[self.process.stdin.write(rest) or 0 :]

    def line(self) -> str:
        """Return the next line that it writes."""
        assert self.process.stdout is not None
        while b"\n" not in self._data:
            ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_SECONDS)
            assert ready, f"nothing follows {self._data!r}"
            read = os.read(self.process.stdout.fileno(), 1 << 20)
            assert read, f"the program ended: {self.process.communicate()[1].decode(errors='replace')}"
            self._data += read
        line, _, self._data = self._data.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        """End its standard input, and fail unless it ends with status 0 and without words, such as those of a sanitizer."""
        try:
            _, errors = self.process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, errors = self.process.communicate()
        assert (self.process.returncode, errors.decode(errors="replace")) == (0, "")


class Actor(LineProgram):
    """``actor.c``: a client of the bus at *path*."""

    def __init__(self, program: Path, path: str, options: str = "-") -> None:
        super().__init__(program, {"SBUS_ADDRESS": path, "PATH": os.defpath})
        self.ok("connect", options)

    def do(self, *words: str) -> str:
        """Send a command, and return the line of its result."""
        self.start(*words)
        return self.line()

    def start(self, *words: str) -> None:
        """Send a command; :meth:`line` has its result."""
        self.write("\t".join(words).encode() + b"\n")

    def ok(self, *words: str) -> None:
        """Send a command that must succeed."""
        assert self.do(*words) == "ok"

    def next(self, timeout_ms: int = 30_000) -> Shown:
        """Return the next packet."""
        return shown(self.do("next", str(timeout_ms)))

    def barrier(self) -> list[Shown]:
        """Wait until the bus has handled all commands, and return the packets before its confirmation."""
        self.ok("control", "!/bus/ping", "barrier")
        packets = []
        while (packet := self.next()).key != b"!/bus/ping":
            assert packet.kind not in {"nothing", "error"}, packet
            packets.append(packet)
        return packets


def first_to_write(actors: Sequence[Actor]) -> Actor:
    """Wait until one of *actors* has written something, and return it."""
    outputs = {actor.process.stdout: actor for actor in actors}
    ready, _, _ = select.select([output for output in outputs if output is not None], [], [], TIMEOUT_SECONDS)
    assert len(ready) == 1
    return outputs[ready[0]]


class Parser(LineProgram):
    """``parser.c``: parses packets."""

    def parse(self, packet: bytes) -> list[Shown]:
        """Return the packet as it is parsed; a batch is followed by the packets in it."""
        self.write(len(packet).to_bytes(LENGTH_BYTES, "little") + packet)
        return [shown(line) for line in iter(self.line, "end")]

    def envelope(self, payload: bytes) -> list[str]:
        """Return the fields of the envelope in *payload*: numbers, then texts in hexadecimal; none if it is not an envelope."""
        packet = b"MSG rpc/x\0" + payload
        self.write(len(packet).to_bytes(LENGTH_BYTES, "little") + packet)
        return list(iter(self.line, "end"))[1].split("\t")[1:]
