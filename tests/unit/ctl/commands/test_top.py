"""The options of ``top``; what it prints is tested on a real bus."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sbusd.ctl.main import application


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sort", "bogus"], "--sort: no column 'bogus' in this table: use id, user, pid,"),
        (["--sort", "id", "--by-uid"], "--sort: no column 'id' in this table: use user, connections,"),
        (["--once", "-n", "2"], "top: --once prints one report; omit it or --count"),
        (["-n", "0"], "'--count' / '-n'"),
        (["-i", "0"], "'--interval' / '-i'"),
        (["-i", "nan"], "'--interval' / '-i'"),
        (["-i", "1e9"], "'--interval' / '-i'"),
    ],
)
def test_wrong_options_are_told_before_any_bus_is_asked(monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("no bus is needed to tell this")

    monkeypatch.setattr("sbusd.ctl.settings.Settings.connect", connect)
    result = CliRunner().invoke(application(), ["top", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
