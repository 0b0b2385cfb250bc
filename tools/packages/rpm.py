"""RPMs of this tree: what packaging/rpm/sbusd.spec makes of it in a root of Debian 13, whose rpm lacks Fedora's macros."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path

from tools.packages import cache, sources
from tools.packages.roots import BUILD, require_root, root_of
from tools.packages.sandbox import WORK, run_in
from tools.packages.version import require_same, spec_version
from tools.stage import ROOT

LOG = "rpmbuild.log"
"""The output of rpmbuild(8), next to the packages."""

CACHED_LOG = "rpm-packages.log"
"""The same while the build runs, in the cache; a build that fails leaves it."""

_SPEC = Path("packaging/rpm/sbusd.spec")
_FALLBACK = Path("packaging/rpm/macros.fallback")
_FILTERS = Path("packaging/rpm/sbusd.rpmlintrc")

_REVISION = 1
"""Raised with a change of how this module builds, so that packages built before are not taken for what it would build now."""


def rpm_packages(wheel: Path | None = None) -> Path:
    """Return a folder of the cache with this tree's .rpm files, source and binary, and build log; they are built if they have to be.

    With a *wheel* of this tree, made in the same root, nothing is compiled again, which takes minutes.

    Raises:
        PackagingError: they cannot be built, or the spec is for another version.
    """
    require_root()
    version = require_same(spec_version(), str(_SPEC))
    files = sources.source_files()
    digest = sources.digest_of(files, str(_REVISION), BUILD.digest, *(["wheel"] if wheel else []))
    return cache.kept("rpm-packages", digest, lambda folder: _build(folder, files, version, wheel), limit=cache.KEPT_SMALL)


def lint(packages: Path, log: Path) -> int:
    """Run rpmlint(1) on the *packages* of a folder, append its output to *log*, and return its status: 0 without errors and warnings."""
    with tempfile.TemporaryDirectory(prefix="sbus-lint-") as name:
        work = Path(name)
        shutil.copy(ROOT / _FILTERS, work)
        shutil.copy(ROOT / _SPEC, work)
        names = [path.name for path in packages.glob("*.rpm")]
        for each in names:
            shutil.copy(packages / each, work)
        command = ["rpmlint", "--strict", "--rpmlintrc", _FILTERS.name, _SPEC.name, *sorted(names)]
        return run_in(root_of(BUILD), work, command, log=log, check=False)


def _build(folder: Path, files: list[Path], version: str, wheel: Path | None) -> None:
    """Build packages of *files* into the new *folder*, with *wheel* if there is one."""
    folder.mkdir()
    log = cache.cache_folder() / CACHED_LOG  # outlives a build that fails
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="sbus-rpm-") as name:
        work = Path(name)
        top = f"sbusd-{version}"
        sources.copy_to(work / top, files)
        (work / "SOURCES").mkdir()
        with tarfile.open(work / "SOURCES" / f"{top}.tar.gz", "w:gz") as archive:
            archive.add(work / top, top)
        # No rpm has been installed in a Debian, so --nodeps; and no debugedit is there to split off what debuggers need.
        command = ["rpmbuild", "-ba", "--nodeps", "--define", "debug_package %{nil}", "--define", f"_topdir {WORK}"]
        command += ["--define", "_dbpath /tmp/rpmdb", "--define", "_tmppath /tmp", "--load", str(WORK / top / _FALLBACK), f"{top}/{_SPEC}"]
        if wheel:
            shutil.copy(wheel, work)
            (work / "macros.wheel").write_text(f"%pyproject_wheel install -D --target-directory=pyproject-wheeldir {WORK / wheel.name}\n")
            command += ["--load", str(WORK / "macros.wheel")]
        run_in(root_of(BUILD), work, command, log=log)
        for path in [*work.glob("RPMS/*/*.rpm"), *work.glob("SRPMS/*.rpm")]:
            shutil.move(path, folder)
    shutil.move(log, folder / LOG)
