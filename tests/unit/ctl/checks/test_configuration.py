"""The configuration files, as far as they may be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.checks.configuration import check_configuration, check_file
from tests.support.users import User


def test_no_file_is_well(tmp_path: Path) -> None:
    assert check_file(tmp_path / "sbusd.toml").result is CheckResult.OK


@pytest.mark.parametrize(
    ("text", "result"), [('separator = "/"\n', CheckResult.OK), ("separator =\n", CheckResult.FAIL), ("colour = 1\n", CheckResult.FAIL)]
)
def test_files(tmp_path: Path, text: str, result: CheckResult) -> None:
    file = tmp_path / "sbusd.toml"
    file.write_text(text)
    finding = check_file(file)
    assert finding.result is result
    assert str(file) in finding.reason
    assert "\n" not in finding.reason


def test_a_bus_elsewhere_has_no_known_files() -> None:
    assert check_configuration(None).result is CheckResult.SKIP


def test_the_user_s_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbus").mkdir()
    (tmp_path / "sbus" / "sbusd.toml").write_text("nonsense\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert check_configuration("user").result is CheckResult.FAIL


@pytest.mark.parametrize("hidden", ["sbusd.toml", "sbusd.toml.d", "sbusd.toml.d/a.toml", "."])
def test_what_this_user_may_not_read_is_no_fault(folder: Path, first_user: User, hidden: str) -> None:
    (folder / "etc" / "sbusd.toml.d").mkdir(parents=True)
    file = folder / "etc" / "sbusd.toml"
    for each in (file, folder / "etc" / "sbusd.toml.d" / "a.toml"):
        each.write_text("separator = \n")
    check_file(file)  # imports all that it needs, before the other user forks off
    (folder / "etc" / hidden).chmod(0)

    def look() -> Finding:
        return check_file(file)

    finding = first_user.call(look)
    assert finding.result is CheckResult.SKIP
    assert finding.reason.endswith("is not readable by this user")
