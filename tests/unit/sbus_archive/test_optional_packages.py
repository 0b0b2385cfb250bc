"""Where packages are found that a distribution lacks, and what a program says that misses one: a command that helps where it is."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from sbus_archive.optional_packages import EXTRAS, LOCAL, how_to_install, pass_local_packages, use_local_packages
from tools.stage import ROOT

PACKAGED = (
    Path("/usr/lib/python3/dist-packages/sbus_archive/optional_packages.py"),
    Path("/usr/lib64/python3.14/site-packages/sbus_archive/optional_packages.py"),
)
"""Where Debian and Fedora have this module."""

OWN = Path("/home/alice/venv/lib/python3/site-packages/sbus_archive/optional_packages.py")


@pytest.mark.parametrize("extra", EXTRAS)
def test_outside_of_the_packages_it_is_the_extra(extra: str) -> None:
    assert how_to_install(extra, OWN) == f"pip install 'sbusd[{extra}]'"
    assert how_to_install(extra) == f"pip install 'sbusd[{extra}]'"


@pytest.mark.parametrize("extra", EXTRAS)
def test_in_the_packages_it_is_the_folder_that_they_look_into(extra: str) -> None:
    for module in PACKAGED:
        words = shlex.split(how_to_install(extra, module))
        assert words == ["python3", "-m", "pip", "install", "--target", LOCAL, *EXTRAS[extra]]


def test_only_packaged_programs_look_into_the_folder_and_behind_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", list(before))
    use_local_packages()
    use_local_packages(OWN)
    assert sys.path == before
    for module in PACKAGED:
        use_local_packages(module)
    assert sys.path == [*before, LOCAL]


def test_only_processes_of_packaged_programs_look_into_it_too() -> None:
    environ: dict[str, str] = {}
    pass_local_packages(environ, OWN)
    assert environ == {}
    pass_local_packages(environ, PACKAGED[0])
    pass_local_packages(environ, PACKAGED[0])
    assert environ == {"PYTHONPATH": LOCAL}
    environ = {"PYTHONPATH": "/mine"}
    pass_local_packages(environ, PACKAGED[0])
    assert environ == {"PYTHONPATH": f"/mine:{LOCAL}"}


def test_no_package_changes_where_every_python_looks() -> None:
    """A .pth file is run by every Python of the machine, root's too, and whatever they have to do with the bus."""
    assert not list((ROOT / "packaging").rglob("*.pth"))
    assert ".pth" not in "".join(path.read_text() for path in (ROOT / "packaging/debian").glob("*.install"))
    assert ".pth" not in (ROOT / "packaging/rpm/sbusd.spec").read_text()


def test_the_extras_are_those_of_the_project() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS["recorder"]) == set(asked["recorder"])
    assert set(EXTRAS["pipeline"]) == set(asked["recorder"]) | set(asked["pipeline"]) - {"sbusd[recorder]"}


def test_the_note_for_debian_says_the_same() -> None:
    note = (ROOT / "packaging/debian/sbus-recorder.README.Debian").read_text().replace("\\\n", " ")
    commands = {" ".join(line.split()) for line in note.splitlines() if "pip install" in line}
    assert commands == {how_to_install(extra, PACKAGED[0]) for extra in EXTRAS}
