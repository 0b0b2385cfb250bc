"""A file system that a test can fill: a tmpfs of a few megabytes."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support import skips


@contextlib.contextmanager
def small_disk_at(folder: Path, options: str) -> Iterator[Path]:
    """Mount a file system with the *options* of tmpfs(5) at *folder*, which is made."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, text=True, check=False)
    skips.require(done.returncode == 0, f"needs to mount a tmpfs: {done.stderr.strip()}", could_run=False)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill the file system of *folder* to the last byte by one file, and return that."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


def take_inodes(folder: Path) -> list[Path]:
    """Use all inodes of the file system of *folder*, and return the files that have them."""
    taken: list[Path] = []
    with contextlib.suppress(OSError):
        while True:
            path = folder / f"filler-{len(taken)}"
            path.touch()
            taken.append(path)
    return taken


USES: dict[str, Callable[[Path], list[Path]]] = {"space": lambda folder: [fill(folder)], "inodes": take_inodes}
"""What a file system can lack: each uses all of it, and returns the files to delete."""
