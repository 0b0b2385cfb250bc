"""Packages from PyPI for the Python of a booted machine, which has no network: fetched once and kept (tools/packages/cache.py)."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

from tests.support import skips
from tools.packages import cache


def pyarrow_for(root: Path) -> Path:
    """Return a folder with the pyarrow that this Python has, for the Python of Debian's *root*; skip the test where it cannot be had."""
    (python,) = (path.name.removeprefix("python") for path in (root / "usr/lib").glob("python3.*"))
    wanted = f"pyarrow=={importlib.metadata.version('pyarrow')}"
    digest = hashlib.sha256(f"{python}\0{wanted}".encode()).hexdigest()[:16]
    try:
        return cache.kept("pyarrow", digest, lambda folder: _fetch(python, wanted, folder))
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or ["pip does not say why"])[-1]
        skips.require(False, f"needs {wanted} for Python {python}: {said}", could_run=True)
        raise


def _fetch(python: str, wanted: str, folder: Path) -> None:
    """Put the package *wanted* into the new *folder*, as the manual has an administrator do, but for another Python than this."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]
    command += ["--python-version", python, "--only-binary=:all:", "--target", str(folder), wanted]
    subprocess.run(command, check=True, capture_output=True, text=True)
