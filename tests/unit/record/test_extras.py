"""What a program says that misses a package: a command that helps where the program is installed as it is."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest

from sbusd.record.extras import EXTRAS, LOCAL, how_to_install
from tools.stage import ROOT


@pytest.mark.parametrize("extra", EXTRAS)
def test_outside_of_the_packages_it_is_the_extra(extra: str, tmp_path: Path) -> None:
    assert how_to_install(extra, tmp_path / "missing.pth") == f"pip install 'sbusd[{extra}]'"


@pytest.mark.parametrize("extra", EXTRAS)
def test_in_the_packages_it_is_the_folder_that_they_look_into(extra: str) -> None:
    path_file = ROOT / "packaging/sbus-recorder.pth"
    words = shlex.split(how_to_install(extra, path_file))
    assert words == ["python3", "-m", "pip", "install", "--target", LOCAL, *EXTRAS[extra]]
    assert path_file.read_text() == f"{LOCAL}\n"


def test_the_extras_are_those_of_the_project() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS["recorder"]) == set(asked["recorder"])
    assert set(EXTRAS["pipeline"]) == set(asked["recorder"]) | set(asked["pipeline"]) - {"sbusd[recorder]"}


def test_the_note_for_debian_says_the_same() -> None:
    note = (ROOT / "packaging/debian/sbus-recorder.README.Debian").read_text().replace("\\\n", " ")
    commands = {" ".join(line.split()) for line in note.splitlines() if "pip install" in line}
    assert commands == {how_to_install(extra, ROOT / "packaging/sbus-recorder.pth") for extra in EXTRAS}
