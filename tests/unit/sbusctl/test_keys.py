"""Keys and patterns that are valid, but probably mistakes, are warnings of each command that has one."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sbusctl.application import application
from sbusctl.keys import one_key, warn_of_patterns


@pytest.mark.parametrize(("key", "is_strange"), [("a/*", True), ("*", True), ("", True), ("a/b", False), ("a/", False)])
def test_the_key_of_one_message(key: str, is_strange: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert one_key(key) == key.encode()
    assert capsys.readouterr().err.startswith("sbusctl: warning: ") is is_strange


@pytest.mark.parametrize(("pattern", "is_strange"), [("a/#", True), ("a*b", True), ("a/*", False), ("", False), (None, False)])
def test_a_pattern(pattern: str | None, is_strange: bool, capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_patterns("a", pattern)
    assert capsys.readouterr().err.startswith("sbusctl: warning: ") is is_strange


@pytest.mark.parametrize(
    "line",
    [
        "members a/*",
        "trace a/*",
        "pub a/* x",
        "pub --lines a/*",
        "store put a/* x",
        "store forget log a/*",
        "store last a/#",
        "store read log --match a/#",
        "store purge log --match a/#",
    ],
)
def test_each_command_warns_before_it_connects(line: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(application(), ["-a", str(tmp_path / "none"), *line.split()])
    assert result.stderr.splitlines()[0].startswith("sbusctl: warning: ")
    assert "no such socket" in result.stderr.splitlines()[1]
