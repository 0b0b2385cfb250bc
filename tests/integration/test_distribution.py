"""What is uploaded to a package index: the source distribution, and a wheel that is made of it and runs outside the tree.

Nothing is compiled here: the extension modules of the tree are put where setuptools looks for what it has compiled already. The packages of
Debian and RPM, in tests/system, compile the same files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

from tests.support.daemons import Daemon
from tests.unit.test_house import committed_files
from tools.packages.version import project_version
from tools.stage import HOUSES, ROOT, house_files

MADE_BY_SETUPTOOLS = {"PKG-INFO", "setup.cfg"}


@pytest.fixture(scope="module")
def committed() -> set[str]:
    """The paths of the files that git would commit."""
    return {str(path.relative_to(ROOT)) for path in committed_files()}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory, committed: set[str]) -> Path:
    """The source distribution of the committed files."""
    folder = tmp_path_factory.mktemp("sdist")
    tree = folder / "tree"
    for name in committed:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    return _build("sdist", tree, folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, sdist: Path, committed: set[str]) -> Path:
    """A wheel made of the source distribution, with the extension modules of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(["tar", "--extract", "--file", sdist, "--directory", folder], check=True)
    tree = folder / sdist.name.removesuffix(".tar.gz")
    library = tree / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    # Each copy is newer than what it depends on, as after a compilation: sources, then C, then extension modules.
    for suffix in (".c", ".cpp", ".so"):
        for path in house_files(suffix):
            name = path.relative_to(ROOT)
            if str(name) not in committed:
                target = (library if suffix == ".so" else tree) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
    return _build("wheel", tree, folder)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The folder of the programs of a clean virtual environment with the wheel, and with the packages that it depends on."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *options, wheel], check=True)
    # Without the .pth file of the editable install, which is only read where site-packages is the environment's own.
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('platlib')}\n")
    return folder / "bin"


def _build(kind: str, tree: Path, folder: Path) -> Path:
    """Build a distribution of *tree* with setuptools and return its path, in *folder*."""
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, folder], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = [path for pattern in ("*.tar.gz", "*.whl") for path in folder.glob(pattern)]
    return made


def _run(*command: Path | str, bus: str = "") -> str:
    """Run a program of the environment outside the tree and return what it prints."""
    env = {"PATH": os.defpath, "LANG": "C.UTF-8", "SBUS_ADDRESS": bus}
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_source_distribution_has_every_committed_file(sdist: Path, committed: set[str]) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2]: member for member in archive if member.isfile()}
    made = {name for name in names if name in MADE_BY_SETUPTOOLS or ".egg-info/" in name}
    assert names.keys() - made == committed
    assert names["tools/prepare"].mode & 0o100, "a program is not executable"


def test_the_wheel_is_imported_outside_the_tree(programs: Path) -> None:
    code = "import sbus, sbusd.dataplane.switch; print(sbus.Bus.__module__, sbusd.dataplane.switch.__file__)"
    module, file = _run(programs / "python", "-c", code).split()
    assert module == "sbus.sync.bus"
    assert Path(file).is_relative_to(programs.parent)


def test_the_wheel_has_every_module_and_data_file(programs: Path, committed: set[str]) -> None:
    (site,) = programs.parent.glob("lib/python*/site-packages")
    wanted = {name for name in committed if name.partition("/")[0] in HOUSES and not name.endswith((".pyx", ".pxi", ".pxd", ".md"))}
    assert not [name for name in sorted(wanted) if not (site / name).is_file()]


def test_the_programs_of_the_wheel_run(programs: Path, bus: Daemon) -> None:
    assert project_version() in _run(programs / "sbusctl", "version", bus=bus.path)
    assert _run(programs / "sbusctl", "whoami", bus=bus.path)
    for program in ("sbusd", "sbus-feed", "sbus-recorder", "sbus-relay", "sbus-pipeline", "sbus-live", "sbus-ship"):
        assert _run(programs / program, "--help")
