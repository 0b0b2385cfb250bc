"""Debian packages of this tree: what packaging/debian makes of it in a root of Debian 13."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tools.packages import cache, sources
from tools.packages.roots import BUILD, require_root, root_of
from tools.packages.sandbox import run_in
from tools.packages.version import changelog_version, require_same

LOG = "build.log"
"""The output of dpkg-buildpackage(1), next to the packages."""

CACHED_LOG = "debian-packages.log"
"""The same while the build runs, in the cache; a build that fails leaves it."""

WHEEL = "wheel"
"""The folder next to the packages that has the wheel that they were made of."""

LINT_OPTIONS = ("--allow-root", "--fail-on", "error,warning", "--pedantic", "--display-info", "--tag-display-limit", "0")

_REVISION = 2
"""Raised with a change of how this module builds, so that packages built before are not taken for what it would build now."""


def debian_packages() -> Path:
    """Return a folder of the cache with this tree's .deb files, .changes file, build log and :data:`WHEEL`, built if they have to be.

    Raises:
        PackagingError: they cannot be built, or debian/changelog is for another version.
    """
    require_root()
    version, _ = changelog_version()
    require_same(version, "packaging/debian/changelog")
    files = sources.source_files()
    digest = sources.digest_of(files, str(_REVISION), BUILD.digest)
    return cache.kept("debian-packages", digest, lambda folder: _build(folder, files, version), limit=cache.KEPT_SMALL)


def lint(packages: Path, log: Path) -> int:
    """Run lintian(1) on the *packages* of a folder, append its output to *log*, and return its status: 0 without errors and warnings."""
    with tempfile.TemporaryDirectory(prefix="sbus-lint-") as work:
        for path in packages.iterdir():
            if path.is_file():
                shutil.copy(path, work)
        (changes,) = Path(work).glob("*.changes")
        return run_in(root_of(BUILD), Path(work), ["lintian", *LINT_OPTIONS, changes.name], log=log, check=False)


def _build(folder: Path, files: list[Path], version: str) -> None:
    """Build packages of *files* into the new *folder*."""
    folder.mkdir()
    log = cache.cache_folder() / CACHED_LOG  # outlives a build that fails
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="sbus-deb-") as work:
        tree = Path(work) / f"sbusd-{version}"
        tree.mkdir()
        sources.copy_to(tree, files)
        # A copy and no link: dpkg-source refuses a debian folder that is a symbolic link.
        shutil.copytree(tree / "packaging/debian", tree / "debian")
        command = ["env", f"--chdir={tree.name}", "dpkg-buildpackage", "--no-sign", "--build=binary"]
        run_in(root_of(BUILD), Path(work), command, log=log)
        for path in Path(work).iterdir():
            if path.is_file():
                shutil.move(path, folder)
        (wheel,) = tree.glob(".pybuild/*/*.whl")
        (folder / WHEEL).mkdir()
        shutil.move(wheel, folder / WHEEL)
    shutil.move(log, folder / LOG)
