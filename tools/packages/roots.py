"""Roots of Debian 13 made by mmdebstrap(1) and kept: one to build packages in, one to boot and install them in."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.packages import cache
from tools.packages.errors import PackagingError
from tools.packages.mirror import find_mirror

SUITE = "trixie"
"""Debian 13: the oldest one with a pydantic, typer and setuptools that are new enough."""

_VARIANT = "minbase"

_LAST_LINES = 3
"""The number of lines shown of an error output; the cause is in the last ones."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The content of a root."""

    name: str
    packages: tuple[str, ...]
    """Debian packages beyond the smallest set that apt works in."""

    @property
    def digest(self) -> str:
        """Changes with every input except the state of the archive."""
        return hashlib.sha256("\0".join([SUITE, _VARIANT, *self.packages]).encode()).hexdigest()[:16]


RUN_TIME = ("python3", "python3-systemd", "python3-pydantic", "python3-typer", "python3-rich", "python3-pyroute2", "python3-pyudev")
"""What the packages depend on: a booted root has no network, so it is there before they are installed."""

RELAY = ("python3-aiohttp", "python3-redis", "redis-server", "redis-tools")
"""What the package sbus-relay depends on beyond that, and the Redis that it talks to."""

LINK = ("python3-cryptography", "nats-server", "openssl")
"""What the package sbus-link recommends, a server, and what makes certificates."""

METRICS = ("python3-prometheus-client", "curl")
"""What the package sbus-metrics depends on beyond those of others, and what tests read metrics with."""

BUILD = Recipe(
    "build",
    (
        *("build-essential", "cython3", "debhelper", "dh-python", "pybuild-plugin-pyproject", "python3-all-dev", "python3-setuptools"),
        *RUN_TIME,  # dh_python3 names dependencies by what is installed
        *("python3-build", "python3-installer", "rpm"),
        *("lintian", "rpmlint"),
    ),
)
"""Builds and judges Debian packages and RPMs, without a network."""

BOOT = Recipe(
    "boot",
    (
        *("systemd", "systemd-sysv", "dbus", "dbus-user-session", "libpam-systemd"),
        *RUN_TIME,
        *("procps", "socat", "udev"),
        *RELAY,
        *LINK,
        *METRICS,
        "python3-dbus-fast",  # what the package sbusd suggests
        *("autopkgtest", "dpkg-dev"),  # what a Debian package brings to be tested with
        "rpm",  # installs the RPMs, whose dependencies are installed under their Debian names
    ),
)
"""Boots under systemd-nspawn(1), has user managers, and everything but our own packages."""


def root_of(recipe: Recipe) -> Path:
    """Return the root made by *recipe*; the first time takes a minute. Callers must not change it.

    Raises:
        PackagingError: this process is not root's, mmdebstrap is missing, or it fails.
    """
    require_root()
    return cache.kept(f"{recipe.name}-root", recipe.digest, lambda folder: _make(recipe, folder))


def require_root() -> None:
    """Raise PackagingError unless this process may make and use a root.

    Raises:
        PackagingError: this process is not root's.
    """
    if os.geteuid() != 0:
        raise PackagingError("a root of Debian 13 can be made and entered by root alone: run this with sudo")


def _make(recipe: Recipe, folder: Path) -> None:
    """Make the root *folder*."""
    if shutil.which("mmdebstrap") is None:
        raise PackagingError("mmdebstrap, which makes the root that packages are built in, is missing: apt-get install mmdebstrap")
    mirror = find_mirror()
    options = [f"--aptopt={line}" for line in mirror.options]
    # In a mount namespace of its own: if it is killed, nothing stays mounted in a folder that the next run has to remove.
    command = ["unshare", "--mount", "mmdebstrap", "--mode=root", "--format=directory"]
    command += [f"--variant={_VARIANT}", f"--include={','.join(recipe.packages)}"]
    command += [*options, '--aptopt=Acquire::Languages "none"', SUITE, str(folder), mirror.source(SUITE)]
    try:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        said = " / ".join(error.stderr.strip().splitlines()[-_LAST_LINES:])
        raise PackagingError(f"mmdebstrap could not make a root of {SUITE} from {mirror.uri}: {said}") from None
