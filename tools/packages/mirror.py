"""Where this machine gets Debian from, by what apt-get(8) itself says: nothing here names a host."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.packages.errors import PackagingError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""What the packages of every root must be signed with; of Debian's package debian-archive-keyring."""

VARIABLE = "DEBIAN_MIRROR"
"""Names the environment variable that says where to get Debian from, on a machine where apt-get cannot tell."""

_PRINTED = re.compile(r"^'(\S+?)/*/dists/([^/'\s]+)/InRelease'", re.MULTILINE)
"""What apt-get update would get for one suite: its mirror, and its name."""

_OWN_NAMES = {"stable", "oldstable", "testing", "unstable", "sid"}
"""Suites that are Debian's on any machine that is Debian, besides the one with its own codename."""

_HANDED_ON = ("Acquire::http", "Acquire::https", "Acquire::Check-Valid-Until", "Acquire::Check-Date", "Acquire::Retries")
"""apt.conf(5)'s options on how to reach a mirror, proxies among them: they hold for the root's mirror as for the machine's."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A mirror of Debian, and how apt reaches it."""

    uri: str
    options: tuple[str, ...] = ()
    """Lines of apt.conf(5)."""

    def source(self, suite: str) -> str:
        """Return the line of sources.list(5) for *suite*."""
        return f"deb [signed-by={KEYRING}] {self.uri} {suite} main"


def find_mirror() -> Mirror:
    """Return the mirror that this machine's apt-get uses, or the one that DEBIAN_MIRROR names.

    Raises:
        PackagingError: apt-get is missing or uses no mirror of Debian, or the archive's keys are missing.
    """
    if not KEYRING.exists():
        raise PackagingError(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    named = os.environ.get(VARIABLE)
    uri = named or _first_of_debian(_ask_apt("apt-get", "--print-uris", "update"), _codename())
    if uri is None:
        raise PackagingError(f"apt-get here has no mirror of Debian in its sources: name one, as in {VARIABLE}=http://HOST/debian")
    options = _ask_apt("apt-config", "dump", "--no-empty", "--format", '%F "%v";%n', *_HANDED_ON)
    return Mirror(uri, tuple(options.splitlines()))


def _first_of_debian(printed: str, codename: str) -> str | None:
    """Return the first mirror that has a suite of Debian's main archive, in what apt-get *printed*."""
    return next((uri for uri, suite in _PRINTED.findall(printed) if suite == codename or suite in _OWN_NAMES), None)


def _codename() -> str:
    """Return the codename of this machine's Debian, or an empty string if it is not Debian."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return ""
    release = {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}
    return release.get("VERSION_CODENAME", "") if release.get("ID") == "debian" else ""


def _ask_apt(*command: str) -> str:
    """Return the output of a program of apt."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise PackagingError(f"there is no {command[0]}: packages are built where apt is, on Debian") from None
    except subprocess.CalledProcessError as error:
        raise PackagingError(f"{command[0]} failed: {(error.stderr.strip().splitlines() or ['it does not say why'])[0]}") from None
