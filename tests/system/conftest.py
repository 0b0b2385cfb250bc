"""Booted machines for system tests, with the packages of this tree."""

from __future__ import annotations

import faulthandler
import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.container import Container, boot_root
from tests.support.packages import Packages, debian_packages, newer_packages, require_packages
from tools.packages import cache

PROGRAMS = Path(__file__).parent / "programs"
"""What tests run inside; there it is /opt/programs."""

USERS = ("alice", "bob")
"""The ordinary users of every machine."""

BUS = ("python3-sbusd", "sbusd")
"""The packages of every machine."""

ADDONS = ("sbus-relay", "sbus-link", "sbus-store", "sbus-trigger", "sbus-metrics", "sbus-blob", "sbus-web", "sbus-recorder")
"""The packages that can be removed while the bus stays. The pipeline is in the recorder's, and the feeds are in the bus's."""

APT_INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends"

FILL = "dd if=/dev/zero of={folder}/fill bs=4k 2>/dev/null || test $(stat --file-system --format=%a {folder}) -eq 0"
"""Leaves no room in the file system of a folder, and fails if there is any."""

_REVISION = 1
"""Raised with a change of how machines are installed here, so that none is used that was installed before."""

BUILD_SECONDS = 2_400
"""Timeout of a test here: the first one builds the packages, on a fresh machine with two roots of Debian, while other tests run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder time for the packages."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS))


@pytest.fixture(scope="session")
def built() -> Packages:
    """This tree's packages; they are built once for each state of the tree."""
    require_packages()
    found = debian_packages()
    # The timer of pytest for the stacks of a test that hangs runs since before the build, which takes many minutes on a busy machine. It
    # would show the next command of this test as if that hung. Each command has a limit, and pytest-timeout has that of the whole test.
    faulthandler.cancel_dump_traceback_later()
    return found


@pytest.fixture(scope="session")
def newer(built: Packages) -> Packages:
    """The same packages with a higher version."""
    return newer_packages(built)


@pytest.fixture
def bare(built: Packages) -> Iterator[Container]:
    """A machine without the bus, for one test; its packages are in /opt/packages."""
    made = boot(built)
    yield made
    made.stop()


@pytest.fixture
def fresh(built: Packages) -> Iterator[Container]:
    """A machine with the bus installed, for one test."""
    made = boot(built, installed=BUS)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def machine(built: Packages) -> Iterator[Container]:
    """A machine with the bus installed, for all tests of a module, which leave it as they found it."""
    made = boot(built, installed=BUS)
    yield made
    made.stop()


def boot(built: Packages, binds: dict[Path, str] | None = None, *, installed: tuple[str, ...] = ()) -> Container:
    """Return a booted machine with its users; *binds* are more folders of ours, and where they are in it.

    The packages *installed* are there as after a reboot: they are installed once for each state of the tree.
    """
    layer = _layer(built, installed) if installed and not _is_in_overlay() else None
    made = Container(boot_root(), layer=layer, binds={built.folder: "/opt/packages", PROGRAMS: "/opt/programs", **(binds or {})})
    try:
        if layer is None:
            made.run("; ".join(f"useradd --create-home --shell /bin/sh {user}" for user in USERS))
            if installed:
                made.run(installation(installed))
    except BaseException:
        made.stop()
        raise
    return made


def install(machine: Container, packages: Packages, folder: str = "/opt/packages") -> None:
    """Install packages that are in *folder* of the machine, as an administrator would."""
    names = " ".join(f"{folder}/{name}" for name in packages.names)
    machine.run(f"{APT_INSTALL} {names}")


def installation(names: tuple[str, ...]) -> str:
    """Return the command that installs the packages *names*."""
    return f"{APT_INSTALL} {' '.join(f'/opt/packages/{name}_*.deb' for name in names)}"


def _is_in_overlay() -> bool:
    """Return whether the cache is in an overlay, which cannot hold what an upper layer has for a removed file: mknod(2) of it fails."""
    found = subprocess.run(["stat", "--file-system", "--format=%T", str(cache.cache_folder())], capture_output=True, text=True, check=True)
    return found.stdout.strip() == "overlayfs"


def _layer(built: Packages, names: tuple[str, ...]) -> Path:
    """Return what the packages *names* change on a machine with its users."""

    def make(folder: Path) -> None:
        made = boot(built)
        try:
            made.run(installation(names))
            made.stop_and_save(folder)
        finally:
            made.stop()

    words = (str(_REVISION), boot_root().name, built.folder.name, *names)
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
    return cache.kept("machine", digest, make, limit=cache.KEPT_SMALL)
