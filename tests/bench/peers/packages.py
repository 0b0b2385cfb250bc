"""The client libraries that are compared: whether they are installed, and which version."""

from __future__ import annotations

import json
import shutil
from importlib import metadata

from tests.bench.programs import BUILD

NODE_MODULES = BUILD / "node" / "node_modules"
"""Where ``make bench-peers`` installs what tests/bench/peers/node/package.json names."""


def python_version(package: str) -> str | None:
    """Return the version of an installed Python package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def node_version(package: str) -> str | None:
    """Return the version of an installed Node package, or None."""
    try:
        version: str = json.loads((NODE_MODULES / package / "package.json").read_text(encoding="utf-8"))["version"]
    except FileNotFoundError:
        return None
    return version


def has_node() -> bool:
    """Return whether Node is installed."""
    return shutil.which("node") is not None
