"""``make defects``: put each defect of the table into a copy of the tree, one at a time, and run the tests that ought to find it.

0: all are found; 1: one is missed; 2: it could not be tried: a text of the table is not in its file exactly once, or tests fail without
a defect.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.defects.defect import Defect
from tests.defects.table import DEFECTS
from tools.packages.sources import copy_to, source_files
from tools.stage import ROOT, house_files

FOUND = 0
MISSED = 1
NOT_TRIED = 2

SECONDS = 300
"""When a test that hangs because of a defect has found it."""

_BUILT = (".so",)
"""What Git does not list and the copy needs."""


class Copy:
    """A copy of the tree *root*, in which at most one file has a defect. It has the packages of *root*, and programs of its own."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self._root = root
        self._changes = 0
        built = [path.relative_to(root) for path in house_files(*_BUILT, root=root)]
        copy_to(folder, [*source_files(root, (".",)), *built], root)
        _copy_environment((root / ".venv").resolve(), folder)

    def stale(self, defects: Iterable[Defect]) -> list[str]:
        """Return a line for each defect whose text is not in its file exactly once, or changes nothing."""
        found = []
        for defect in defects:
            count = (self.folder / defect.file).read_text().count(defect.old) if (self.folder / defect.file).is_file() else 0
            if count != 1 or defect.old == defect.new:
                found.append(f"{defect.file}: {defect.why}: the text is there {count} times")
        return found

    def passes(self, tests: Sequence[str], log: Path) -> bool:
        """Return whether *tests* pass. Raises RuntimeError if they cannot be run."""
        command = [
            str(self._root / ".venv/bin/python"),
            "-m",
            "pytest",
            "-q",
            "-x",
            "-n0",
            "-p",
            "no:cacheprovider",
            f"--timeout={SECONDS}",
        ]
        env = {**os.environ, "PYTHONPATH": str(self.folder)}
        with log.open("w") as output:
            status = subprocess.run(
                [*command, *tests], cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
            ).returncode
        # A module that cannot be imported stops the collection of tests: that finds the defect too.
        if status not in (0, 1, 2) or (status == 2 and "error" not in log.read_text()):
            raise RuntimeError(f"pytest ended with status {status}: {log.read_text()[-2_000:]}")
        return status == 0

    def has_found(self, defect: Defect, log: Path) -> bool:
        """Return whether the tests of *defect* find it."""
        file = self.folder / defect.file
        file.write_text(file.read_text().replace(defect.old, defect.new))
        # Byte code is compiled again if the time of the file is another one, in whole seconds.
        self._changes += 1
        os.utime(file, (self._changes, self._changes))
        try:
            return not self.passes(defect.tests, log)
        finally:
            shutil.copy2(self._root / defect.file, file)


def _copy_environment(source: Path, folder: Path) -> None:
    """Make a virtual environment in *folder* with the packages of *source*; its programs import the tree there."""
    target = folder / ".venv"
    (packages,) = source.glob("lib/python*/site-packages")
    shutil.copytree(source / "bin", target / "bin", symlinks=True)
    shutil.copy2(source / "pyvenv.cfg", target)
    (target / packages.relative_to(source)).mkdir(parents=True)
    for path in packages.iterdir():
        copied = target / path.relative_to(source)
        if path.suffix == ".pth":
            copied.write_text(path.read_text().replace(str(source.parent), str(folder)))
        else:
            copied.symlink_to(path)
    for path in (target / "bin").iterdir():
        if path.is_file() and not path.is_symlink() and path.read_bytes().startswith(b"#!"):
            path.write_text(path.read_text().replace(str(source), str(target)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the defects and return the exit status."""
    options = _parser().parse_args(arguments)
    defects = [each for each in DEFECTS if all(word in f"{each.file} {each.why}" for word in options.only)]
    with tempfile.TemporaryDirectory(prefix="defects-") as folder:
        log = Path(folder, "log")
        copy = Copy(ROOT, Path(folder, "tree"))
        if stale := copy.stale(defects):
            print(*stale, sep="\n", file=sys.stderr)
            return NOT_TRIED
        if not copy.passes(sorted({test for defect in defects for test in defect.tests}), log):
            print(f"defects: tests fail without a defect\n{log.read_text()[-4_000:]}", file=sys.stderr)
            return NOT_TRIED
        missed = sum(not report(copy, defect, log) for defect in defects)
    print(f"{len(defects) - missed} of {len(defects)} defects found")
    return MISSED if missed else FOUND


def report(copy: Copy, defect: Defect, log: Path) -> bool:
    """Try one defect, print the result in a line, and return whether it was found."""
    begun = time.monotonic()
    is_found = copy.has_found(defect, log)
    by = next((line.split(" ")[1] for line in log.read_text().splitlines() if line.startswith(("FAILED ", "ERROR "))), "a test that hangs")
    seconds = time.monotonic() - begun
    print(
        f"{'found ' if is_found else 'MISSED'} {seconds:4.0f} s  {defect.file}: {defect.why}{f'  ({by})' if is_found else ''}", flush=True
    )
    return is_found


def _parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog="defects", description="Try whether the tests find defects.")
    parser.add_argument("--only", metavar="WORD", action="append", default=[], help="only defects with this word; may be repeated")
    return parser


if __name__ == "__main__":
    sys.exit(main())
