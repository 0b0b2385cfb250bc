"""The checks of rights that services need."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from sbusd.ctl.checks import CheckResult
from sbusd.ctl.checks.rights import check_rights

EFFECTS = {"presence": "it does not see", "vouch": "it cannot speak"}

ME = pwd.getpwuid(os.geteuid())


def test_a_missing_right_is_named_with_its_effect_and_the_line_to_add(tmp_path: Path) -> None:
    file = tmp_path / "sbusd.toml"
    file.write_text(f"[rights]\npresence = {{ users = [{ME.pw_uid}] }}\n")
    (finding,) = check_rights("sbus-store", "system", EFFECTS, file, user=ME.pw_name)
    assert finding.result is CheckResult.FAIL
    assert finding.reason == f"user {ME.pw_name} does not have the right vouch: it cannot speak"
    assert f'vouch = {{ users = ["{ME.pw_name}"] }}' in finding.advice
    assert str(file) in finding.advice


def test_a_right_can_come_from_a_group(tmp_path: Path) -> None:
    file = tmp_path / "sbusd.toml"
    file.write_text(f"[rights]\npresence = {{ users = [{ME.pw_uid}] }}\nvouch = {{ groups = [{ME.pw_gid}] }}\n")
    (finding,) = check_rights("sbus-store", "system", EFFECTS, file, user=ME.pw_name)
    assert (finding.result, finding.reason) == (CheckResult.OK, f"{ME.pw_name} has: presence vouch")


def test_an_owner_of_the_user_bus_has_presence(tmp_path: Path) -> None:
    file = tmp_path / "sbusd.toml"
    file.write_text("")
    assert [finding.reason.split(":")[0] for finding in check_rights("sbus-store", "user", EFFECTS, file)] == [
        f"user {ME.pw_name} does not have the right vouch"
    ]
    assert check_rights("sbus-blob", "user", {"presence": "it does not see"}, file) == []


def test_a_user_that_does_not_exist_and_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (finding,) = check_rights("sbus-store", "system", EFFECTS, tmp_path / "sbusd.toml", user="no-such-user")
    assert (finding.result, finding.advice) == (CheckResult.WARN, "install the package sbus-store")
    file = tmp_path / "wrong.toml"
    file.write_text("rights = 5\n[")
    (finding,) = check_rights("sbus-store", "system", EFFECTS, file, user=ME.pw_name)
    assert finding.result is CheckResult.SKIP
