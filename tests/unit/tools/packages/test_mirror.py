"""The mirror is the one that apt-get names, on made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.skips import require, require_program
from tools.packages import mirror
from tools.packages.errors import PackagingError

pytestmark = pytest.mark.slow

_OTHERS = """'http://other.example/tools/dists/stable-tools/InRelease' other.example_tools_dists_stable-tools_InRelease 0
'http://mirror.example/debian-security/dists/bookworm-security/InRelease' mirror.example_debian-security_InRelease 0
'http://mirror.example/flat/./InRelease' mirror.example_flat_InRelease 0
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone is searched for programs, on a machine that has the archive's keys."""
    keys = tmp_path / "keys.gpg"
    keys.touch()
    monkeypatch.setattr(mirror, "KEYRING", keys)
    monkeypatch.setattr(mirror, "_codename", lambda: "bookworm")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(mirror.VARIABLE, raising=False)
    return tmp_path


def _program(folder: Path, name: str, says: str, status: int = 0, stream: int = 1) -> None:
    """Put a program into *folder* that says *says*."""
    (folder / f"{name}.says").write_text(says)
    (folder / name).write_text(f"#!/bin/sh\n/bin/cat {folder}/{name}.says >&{stream}\nexit {status}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("suite", ["bookworm", "stable", "sid"])
def test_the_main_archive_is_found_among_others(machine: Path, suite: str) -> None:
    _program(machine, "apt-get", f"{_OTHERS}'http://mirror.example/debian/dists/{suite}/InRelease' mirror.example_debian_InRelease 0\n")
    _program(machine, "apt-config", 'Acquire::http::Proxy "http://proxy.example:3128";\nAcquire::Retries "3";\n')
    found = mirror.find_mirror()
    assert found.uri == "http://mirror.example/debian"
    assert found.options == ('Acquire::http::Proxy "http://proxy.example:3128";', 'Acquire::Retries "3";')
    assert found.source("trixie") == f"deb [signed-by={machine}/keys.gpg] http://mirror.example/debian trixie main"


def test_a_machine_without_debians_archive_gets_advice_to_name_one(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(machine, "apt-get", _OTHERS)
    _program(machine, "apt-config", "")
    with pytest.raises(PackagingError, match="no mirror of Debian in its sources: name one, as in DEBIAN_MIRROR="):
        mirror.find_mirror()
    monkeypatch.setenv(mirror.VARIABLE, "http://named.example/debian")
    assert mirror.find_mirror() == mirror.Mirror("http://named.example/debian")


def test_a_machine_without_apt_gets_an_error(machine: Path) -> None:
    with pytest.raises(PackagingError, match="there is no apt-get"):
        mirror.find_mirror()


def test_errors_of_apt_are_reported(machine: Path) -> None:
    _program(machine, "apt-get", "E: The list of sources could not be read.\n", status=100, stream=2)
    with pytest.raises(PackagingError, match=r"^apt-get failed: E: The list of sources could not be read\.$"):
        mirror.find_mirror()


def test_the_archives_keys_must_be_there(machine: Path) -> None:
    (machine / "keys.gpg").unlink()
    with pytest.raises(PackagingError, match=r"keys\.gpg is missing: apt-get install debian-archive-keyring"):
        mirror.find_mirror()


def test_the_real_apt_is_understood() -> None:
    """On Debian, what apt-get says is in the form that is read."""
    require(mirror._codename() != "", "needs Debian, whose apt-get has a mirror of Debian", could_run=False)
    require_program("apt-get", "apt")
    assert mirror._first_of_debian(mirror._ask_apt("apt-get", "--print-uris", "update"), mirror._codename())
