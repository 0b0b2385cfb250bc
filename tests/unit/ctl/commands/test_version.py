"""Versions, with and without a bus."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from sbusd import __version__
from sbusd.ctl.commands.version import lines
from sbusd.ctl.main import application


def test_lines() -> None:
    assert lines({"sbusctl": "1", "bus": "2", "switch": "compiled"}) == ["sbusctl 1", "bus 2 (compiled switch)"]
    assert lines({"sbusctl": "1", "bus": "2"}) == ["sbusctl 1", "bus 2"]
    assert lines({"sbusctl": "1", "bus": None}) == ["sbusctl 1", "bus version unknown"]
    assert lines({"sbusctl": "1", "problem": "no\nbus"}) == ["sbusctl 1", r"bus not reachable: no\nbus"]


def test_without_a_bus_that_is_said_and_no_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(application(), ["--json=short", "-a", f"{tmp_path}/none", "version"])
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert said["sbusctl"] == __version__
    assert said["problem"].startswith(f"cannot connect to {tmp_path}/none")
