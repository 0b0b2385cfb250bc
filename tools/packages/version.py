"""The version in pyproject.toml, and its copies in the files of the packages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tools.packages.errors import PackagingError
from tools.stage import ROOT

_CHANGELOG = re.compile(r"^sbusd \(([^)-]+)-([^)-]+)\) ")
_SPEC = re.compile(r"^Version:\s+(\S+)$", re.MULTILINE)


def project_version(root: Path = ROOT) -> str:
    """Return the version of the project, such as ``0.1.0``."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def changelog_version(root: Path = ROOT) -> tuple[str, str]:
    """Return the project's version and Debian's revision of it in the topmost entry of debian/changelog.

    Raises:
        PackagingError: the topmost entry has no such version.
    """
    path = root / "packaging/debian/changelog"
    found = _CHANGELOG.match(path.read_text())
    if found is None:
        raise PackagingError(f"{path}: the first line is not an entry of sbusd, such as: sbusd (1.0-1) unstable; urgency=medium")
    return found[1], found[2]


def spec_version(root: Path = ROOT) -> str:
    """Return the project's version in the RPM's spec.

    Raises:
        PackagingError: it has none.
    """
    path = root / "packaging/rpm/sbusd.spec"
    found = _SPEC.search(path.read_text())
    if found is None:
        raise PackagingError(f"{path}: has no line Version:")
    return found[1]


def require_same(found: str, where: str, root: Path = ROOT) -> str:
    """Return *found*, the version that the file *where* has, if it is the project's.

    Raises:
        PackagingError: it is another one.
    """
    version = project_version(root)
    if found != version:
        raise PackagingError(f"{where} is for version {found}, but pyproject.toml for {version}: bring them together")
    return version
