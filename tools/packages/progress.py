"""The progress of a build of packages, on standard error: each stage when it begins, and a line after each half minute without one.

It reads what the build leaves in the cache, so the build itself does not know of it.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tools.packages.cache import cache_folder
from tools.packages.roots import BUILD

_INTERVAL_SECONDS = 0.5

_QUIET_SECONDS = 30.0
"""After this time without a new stage, a line says that the build is still running."""

_STEP = re.compile(r"^\s*(dh_auto_build|dh_auto_install|dh_builddeb)\b|^Executing\((%\w+)\)|^(Processing files)", re.MULTILINE)
"""The steps in the output of debhelper(7) and rpmbuild(8) that take long."""

_STAGES = {
    "dh_auto_build": "compiling",
    "dh_auto_install": "installing into the packages",
    "dh_builddeb": "writing the packages",
    "%build": "compiling",
    "%install": "installing into the packages",
    "%check": "checking imports",
    "Processing files": "writing the packages",
}


class BuildProgress:
    """Prints the progress of a build of *kind*, ``deb`` or ``rpm``, while the context is open."""

    def __init__(self, kind: str, log: str, folder: Path | None = None, show: Callable[[str], None] | None = None) -> None:
        """*log* is the name of the build's log in *folder*, the cache; *show* prints a line."""
        self._kind = kind
        self._folder = folder or cache_folder()
        self._log = self._folder / log
        self._show = show or _print
        self._began = time.time()
        self._shown_at = 0.0
        self._stage = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> BuildProgress:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def update(self, now: float) -> None:
        """Show the stage of the build at *now* if it is new, or nothing was shown for some time."""
        stage = self._current_stage()
        if stage == self._stage and now - self._shown_at < _QUIET_SECONDS:
            return
        still = "still " if stage == self._stage else ""
        self._stage, self._shown_at = stage, now
        self._show(f"{self._kind}: {now - self._began:.0f} s: {still}{stage}")

    def _run(self) -> None:
        while not self._done.wait(_INTERVAL_SECONDS):
            self.update(time.time())

    def _current_stage(self) -> str:
        """Return what the build does now, by the files that it writes."""
        if any(self._folder.glob(f"{BUILD.name}-root-*.new")):
            return "downloading a root of Debian 13 and unpacking it; this is kept for later builds"
        try:
            if self._log.stat().st_mtime < self._began:
                return "copying the sources"
            steps = _STEP.findall(self._log.read_text(errors="replace"))
        except OSError:
            return "copying the sources"
        step = next(filter(None, steps[-1])) if steps else ""
        return f"{_STAGES.get(step, 'preparing')} (log: {self._log})"


def _print(line: str) -> None:
    """Print *line* to standard error."""
    print(line, file=sys.stderr, flush=True)
