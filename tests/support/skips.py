"""The only way to skip a test: it states whether the test could have run on this machine.

A skip that comes through :func:`require` with ``could_run=False`` is honest anywhere. Any other one is a hole in the run: with
``CI=true`` in the environment, or ``--strict-skips``, tests/conftest.py turns it into a failure.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

import pytest

HONEST_MARK = " [cannot be had on this machine]"
"""Ends the reason of every skip that is honest; the strict run looks for it."""


def require(condition: bool, reason: str, *, could_run: bool) -> None:
    """Skip the calling test unless *condition* holds.

    *reason* says what is missing and how to get it; *could_run* says whether this machine could have it.

    Raises:
        pytest.skip.Exception: the condition does not hold.
    """
    if not condition:
        pytest.skip(reason if could_run else reason + HONEST_MARK)


def is_strict(option: bool) -> bool:
    """Return whether a skip that could have run is a failure: asked for by *option*, or by CI=true."""
    return option or os.environ.get("CI", "").lower() in {"1", "true", "yes"}


def require_root() -> None:
    """Skip unless the tests run as root, as they must to act as two users."""
    require(os.geteuid() == 0, "needs root, to act as two users: sudo make test", could_run=_has_sudo())


def require_program(name: str, package: str) -> None:
    """Skip unless the program *name*, of the Debian package *package*, is on PATH."""
    found = shutil.which(name) is not None
    require(found, f"needs {name}: apt-get install {package}", could_run=shutil.which("apt-get") is not None)


def require_namespaces() -> None:
    """Skip unless this process may make network and mount namespaces."""
    reason = _namespace_refusal()
    require(not reason, f"needs a network namespace of its own: {reason}", could_run=False)


@functools.cache
def _has_sudo() -> bool:
    """Return whether sudo(8) works here without a password."""
    return shutil.which("sudo") is not None and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0


@functools.cache
def _namespace_refusal() -> str:
    """Return why unshare(1) does not make namespaces here, or an empty string if it does."""
    if shutil.which("unshare") is None:
        return "unshare is missing: apt-get install util-linux"
    probe = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False, text=True)
    return "" if probe.returncode == 0 else probe.stderr.strip()
