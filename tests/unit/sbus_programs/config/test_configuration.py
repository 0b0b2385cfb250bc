"""The settings of a program, with and without files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sbus_programs.config.configuration import describe
from sbus_programs.config.files import ConfigError
from sbus_programs.config.loading import check_daemon_settings, load_daemon_settings
from sbus_programs.config.settings import DaemonSettings
from tools.stage import ROOT


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load_daemon_settings(tmp_path / "x.toml") == DaemonSettings()
    found = check_daemon_settings(tmp_path / "x.toml")
    assert describe(found, tmp_path / "x.toml") == f"configuration is valid: no {tmp_path}/x.toml, the defaults apply"


def test_files_are_read_and_named(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("admins = [1]")
    (tmp_path / "x.toml.d").mkdir()
    (tmp_path / "x.toml.d" / "y.toml").write_text("admins = [2]")
    assert load_daemon_settings(tmp_path / "x.toml", required=True).admins == (2,)
    found = check_daemon_settings(tmp_path / "x.toml")
    assert describe(found, tmp_path / "x.toml") == f"configuration is valid: {tmp_path}/x.toml {tmp_path}/x.toml.d/y.toml"


def test_a_wrong_file_is_an_error_of_both(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("admin = [1]")
    for call in (load_daemon_settings, check_daemon_settings):
        with pytest.raises(ConfigError, match="admin: unknown key; did you mean admins"):
            call(tmp_path / "x.toml")


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_daemon_settings(tmp_path / "x.toml", required=True)


@pytest.mark.slow
def test_without_a_file_pydantic_is_not_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from sbus_programs.config import load_daemon_settings as load; load(Path(sys.argv[1]));"
        "print(sorted({'pydantic', 'pydantic_core', 'tomllib'} & set(sys.modules)))"
    )
    for file, imported in (("none.toml", "[]"), ("some.toml", "['pydantic', 'pydantic_core', 'tomllib']")):
        (tmp_path / "some.toml").touch()
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / file)], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == imported
