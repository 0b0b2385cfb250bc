"""Built packages, and a root of Debian 13 to boot and install them in: for tests, made once and kept (tools/packages/cache.py).

    from tests.support import packages

    packages.require_packages()          # skips the test where they cannot be built
    root = packages.boot_root()          # Path: a whole root that systemd-nspawn(1) boots; use it with --volatile=overlay
    built = packages.debian_packages()   # Packages: .folder, .bus, .python, .store, ..., .version; bind it;
                                         #   install with apt-get install -y --no-install-recommends /debs/NAME.deb ...  (built.names)
    newer = packages.newer_packages(built)  # the same packages under a higher version, for an upgrade

The root has what the packages depend on, so that apt needs no network; and dbus, libpam-systemd, procps, socat and redis-server.
Do not change it: all tests and all trees of this machine share it. The first call makes it in half a minute; building
the packages takes a minute and a half the first time, twenty seconds after a change of the sources, and nothing otherwise.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support import skips
from tools.packages import cache, debian, roots
from tools.packages.errors import PackagingError
from tools.packages.mirror import find_mirror

_FIELD = re.compile(r"^(Version|Depends): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Packages:
    """One version of the Debian packages."""

    folder: Path
    bus: Path
    """sbusd: the daemon, sbusctl, units, manual."""
    python: Path
    """python3-sbusd: the Python package and its extension modules."""
    relay: Path
    """sbus-relay: calls between hosts."""
    link: Path
    """sbus-link: messages between hosts."""
    store: Path
    """sbus-store: stored messages and work queues."""
    trigger: Path
    """sbus-trigger: units that messages start."""
    metrics: Path
    """sbus-metrics: metrics for Prometheus."""
    blob: Path
    """sbus-blob: large messages and descriptors."""
    web: Path
    """sbus-web: the bus in a browser."""
    recorder: Path
    """sbus-recorder: the record, its tables and its report; Debian has no package of pyarrow."""
    version: str
    """As dpkg has it, such as ``0.1.0-1``; with a plus sign and something more it is higher."""

    @property
    def names(self) -> tuple[str, str]:
        """The file names of what every machine gets."""
        return self.python.name, self.bus.name


def require_packages() -> None:
    """Skip the calling test unless packages can be built here: as root, with mmdebstrap, from a mirror of Debian."""
    skips.require_root()
    skips.require_namespaces()
    skips.require_program("mmdebstrap", "mmdebstrap")
    try:
        find_mirror()
    except PackagingError as error:
        skips.require(False, str(error), could_run=shutil.which("apt-get") is not None)


def boot_root() -> Path:
    """Return the root to boot. Raises: PackagingError if it cannot be made."""
    return roots.root_of(roots.BOOT)


def debian_packages() -> Packages:
    """Return the packages of this tree. Raises: PackagingError if they cannot be built."""
    return _packages_in(debian.debian_packages())


def newer_packages(packages: Packages) -> Packages:
    """Return *packages* under a higher version, ``+next``; they are made once."""
    digest = packages.folder.name.rpartition("-")[2]

    def make(folder: Path) -> None:
        folder.mkdir()
        with_version(packages, f"{packages.version}+next", folder)

    return _packages_in(cache.kept("newer-packages", digest, make, limit=cache.KEPT_SMALL))


def with_version(packages: Packages, version: str, folder: Path) -> Packages:
    """Put *packages* into *folder* under another *version*, as a build would that differs in nothing else; takes a second.

    Raises:
        subprocess.CalledProcessError: dpkg-deb(1) refuses.
    """
    for path in (
        packages.python,
        packages.bus,
        packages.relay,
        packages.link,
        packages.store,
        packages.trigger,
        packages.metrics,
        packages.blob,
        packages.web,
        packages.recorder,
    ):
        _repack(path, version, folder)
    return _packages_in(folder)


def _packages_in(folder: Path) -> Packages:
    """Return the packages of *folder*."""
    (bus,) = folder.glob("sbusd_*.deb")
    (python,) = folder.glob("python3-sbusd_*.deb")
    (relay,) = folder.glob("sbus-relay_*.deb")
    (link,) = folder.glob("sbus-link_*.deb")
    (store,) = folder.glob("sbus-store_*.deb")
    (trigger,) = folder.glob("sbus-trigger_*.deb")
    (metrics,) = folder.glob("sbus-metrics_*.deb")
    (blob,) = folder.glob("sbus-blob_*.deb")
    (web,) = folder.glob("sbus-web_*.deb")
    (recorder,) = folder.glob("sbus-recorder_*.deb")
    return Packages(folder, bus, python, relay, link, store, trigger, metrics, blob, web, recorder, bus.name.split("_")[1])


def _repack(path: Path, version: str, folder: Path) -> None:
    """Write the package *path* into *folder*, with *version* as its own and in what it depends on."""
    tree = folder / f"{path.stem}.tree"
    subprocess.run(["dpkg-deb", "--raw-extract", str(path), str(tree)], check=True)
    control = tree / "DEBIAN/control"
    text = control.read_text()
    old = dict(_FIELD.findall(text))["Version"]
    control.write_text(text.replace(old, version))
    # gzip: the packages are installed once and thrown away.
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", "-Zgzip", "-z1", str(tree), str(folder)], check=True, stdout=subprocess.DEVNULL
    )
    shutil.rmtree(tree)
