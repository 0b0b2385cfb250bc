"""The version is defined in pyproject.toml; all copies of it must be equal."""

from __future__ import annotations

from pathlib import Path

import pytest

import sbus
from tools.packages import version
from tools.packages.errors import PackagingError


def _tree(folder: Path, changelog: str = "") -> Path:
    """Return a made-up tree."""
    (folder / "packaging/debian").mkdir(parents=True)
    (folder / "packaging/rpm").mkdir()
    (folder / "packaging/rpm/sbusd.spec").write_text("Name: sbusd\n")
    (folder / "packaging/debian/changelog").write_text(changelog)
    (folder / "pyproject.toml").write_text('[project]\nname = "sbusd"\nversion = "1.2.3"\n')
    return folder


def test_all_have_the_version_of_the_project() -> None:
    project = version.project_version()
    assert project[0].isdigit()
    assert version.changelog_version()[0] == project
    assert version.spec_version() == project
    assert sbus.__version__ == project


def test_a_changelog_is_read(tmp_path: Path) -> None:
    root = _tree(tmp_path, "sbusd (1.2.3-4) unstable; urgency=medium\n")
    assert version.changelog_version(root) == ("1.2.3", "4")
    assert version.require_same("1.2.3", "it", root) == "1.2.3"


@pytest.mark.parametrize("text", ["", "sbusd (1.2.3) unstable; urgency=medium\n", "other (1.2.3-4) unstable\n"])
def test_a_changelog_without_a_version_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(PackagingError, match=r"debian/changelog: the first line is not an entry"):
        version.changelog_version(_tree(tmp_path, text))


def test_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackagingError, match=r"debian/changelog is for version 1\.2\.4, but pyproject\.toml for 1\.2\.3"):
        version.require_same("1.2.4", "debian/changelog", _tree(tmp_path))


def test_a_spec_without_a_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackagingError, match=r"rpm/sbusd\.spec: has no line Version:"):
        version.spec_version(_tree(tmp_path))
