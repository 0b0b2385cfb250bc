"""A control group for each container: the only way to be sure that all of its processes have ended. Spec: cgroups(7)."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from tests.support import skips

PREFIX = "sbus-container-"

_REAP_SECONDS = 60.0
"""The timeout for killed processes: the kernel frees those of a container within a fraction of it."""


def own_folder() -> Path:
    """Return the folder of this process's control group, version 2; skip the test where there is none."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    found = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    own = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    skips.require(bool(found and own), "needs control groups of version 2", could_run=False)
    return found[0] / own[0].lstrip("/")


class ControlGroup:
    """A new control group; call :meth:`remove` at the end, however that comes about."""

    def __init__(self) -> None:
        base = own_folder()
        _remove_orphans(base)
        self.folder = base / f"{PREFIX}{time.monotonic_ns()}-{os.getpid()}"
        self.folder.mkdir()

    def entering(self, *below: str) -> list[str]:
        """Return the words that, in front of a command, run it in this group, or in the one *below* it."""
        procs = self.folder.joinpath(*below, "cgroup.procs")
        return ["/bin/sh", "-c", f'echo 0 >"{procs}" && exec "$@"', "sh"]

    def remove(self) -> None:
        """Kill all processes in it, and remove it."""
        _remove(self.folder)


def _remove_orphans(base: Path) -> None:
    """Remove the groups of test runs that were killed: theirs is the last number of the name."""
    for path in base.glob(f"{PREFIX}*"):
        if not Path("/proc", path.name.rpartition("-")[2]).exists():
            with suppress(TimeoutError):
                _remove(path)


def _remove(folder: Path) -> None:
    """Kill all processes in the group *folder*, and remove it recursively. Raises TimeoutError if the kernel keeps it."""
    end = time.monotonic() + _REAP_SECONDS
    while folder.is_dir():
        with suppress(OSError):
            (folder / "cgroup.kill").write_text("1")
            # Depth first; what is still dying keeps its folder until the next round.
            for path, _, _ in os.walk(folder, topdown=False):
                os.rmdir(path)
            return
        if time.monotonic() > end:
            raise TimeoutError(f"{folder} is not empty {_REAP_SECONDS} s after all in it was killed")
        time.sleep(0.01)
