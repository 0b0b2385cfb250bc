"""make deb and make rpm: their output and their failures; nothing is built here."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tools.packages import __main__ as command
from tools.packages import roots
from tools.packages.errors import PackagingError
from tools.packages.mirror import Mirror


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that packages go to, and a made-up kind of package that is judged by what is in it."""
    built = tmp_path / "built"
    built.mkdir()
    (built / "thing_1.deb").write_text("good")

    def lint(packages: Path, log: Path) -> int:
        log.write_text("W: thing: bad\n")
        return int((packages / "thing_1.deb").read_text() == "bad")

    monkeypatch.setattr(command, "DIST", tmp_path / "dist")
    monkeypatch.setattr(command, "KINDS", {"deb": (lambda: built, lint, "judge", "build.log")})
    return tmp_path / "dist"


def test_packages_go_to_dist(dist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["deb"]) == 0
    assert capsys.readouterr() == ("deb: dist/thing_1.deb\n", "deb: checking the packages with judge\n")
    assert (dist / "thing_1.deb").read_text() == "good"


def test_packages_that_are_judged_badly_are_a_failure(dist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dist.parent / "built/thing_1.deb").write_text("bad")
    assert command.main(["deb"]) == 1
    said = capsys.readouterr().err
    assert (
        said == "deb: checking the packages with judge\nW: thing: bad\ndeb: judge finds what has to change: see above, or dist/judge.log\n"
    )


@pytest.mark.parametrize("arguments", [[], ["tar"], ["deb", "rpm"]])
def test_an_unknown_argument_lists_the_valid_ones(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m tools.packages deb|rpm\n"


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_users_other_than_root_get_one_line(kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert command.main([kind]) == 1
    assert capsys.readouterr().err == f"{kind}: a root of Debian 13 can be made and entered by root alone: run this with sudo\n"


def test_a_missing_mmdebstrap_is_reported_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PackagingError, match=r"mmdebstrap, .*, is missing: apt-get install mmdebstrap"):
        roots.root_of(roots.BOOT)
    assert not [path for path in (tmp_path / "sbusd").iterdir() if path.is_dir()]


@pytest.mark.slow
def test_the_last_output_of_mmdebstrap_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mmdebstrap"
    program.write_text("#!/bin/sh\necho I: first >&2\necho E: no space >&2\necho E: failed >&2\necho I: bye >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(roots, "find_mirror", lambda: Mirror("http://mirror.example/debian"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    says = "mmdebstrap could not make a root of trixie from http://mirror.example/debian: E: no space / E: failed / I: bye"
    with pytest.raises(PackagingError, match=f"^{says}$"):
        roots.root_of(roots.BUILD)


def test_roots_are_distinguished_by_their_content() -> None:
    assert len({roots.BUILD.digest, roots.BOOT.digest, roots.Recipe("boot", (*roots.BOOT.packages, "more")).digest}) == 3
    assert set(roots.RUN_TIME) < set(roots.BUILD.packages) & set(roots.BOOT.packages)
