"""What took long to make and is kept for the next time: under $XDG_CACHE_HOME/sbusd, by name and by a digest of what went in."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

KEPT = 3
"""How many things of one name are kept: the one in use, and those of two other branches. A root has about 800 MB."""

KEPT_SMALL = 16
"""The same for what changes with every edit and has some megabytes: none goes while tests of another branch, however slow, still use it."""


def cache_folder() -> Path:
    """Return the folder of the cache; it can be removed at any time when it is not in use."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is invalid and ignored.
    return (Path(named) if named.startswith("/") else Path.home() / ".cache") / "sbusd"


def kept(name: str, digest: str, make: Callable[[Path], None], *, limit: int = KEPT) -> Path:
    """Return the folder *name*-*digest* of the cache; if it is not there, *make* fills a folder that then takes its place.

    Safe to call from several processes at a time: one makes, the others wait. What *make* leaves behind when it raises is removed.
    Of the same *name*, only the *limit* that were used last are kept.
    """
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}-{digest}"
    with _lock(folder / f"{name}.lock"):
        if not target.is_dir():
            fresh = folder / f"{name}-{digest}.new"
            shutil.rmtree(fresh, ignore_errors=True)  # of a run that was killed
            try:
                make(fresh)
            except BaseException:
                shutil.rmtree(fresh, ignore_errors=True)
                raise
            fresh.rename(target)
        os.utime(target)
        _remove_oldest(folder, name, limit)
    return target


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock *path*, which the kernel releases should this process die."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_oldest(folder: Path, name: str, limit: int) -> None:
    """Remove all but the *limit* folders of *name* that were used last."""
    found = [path for path in folder.iterdir() if path.is_dir() and path.name.rpartition("-")[0] == name]
    for path in sorted(found, key=lambda each: each.stat().st_mtime, reverse=True)[limit:]:
        shutil.rmtree(path)
