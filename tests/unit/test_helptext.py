"""Help texts do not depend on the version of typer: here that of the developers, in tests/system/test_help.py the oldest that counts."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from sbusd.ctl.main import application
from sbusd.helptext import PlainCommand, PlainGroup

USAGES = [("pub", "KEY [PAYLOAD]"), ("sub", "PATTERN..."), ("serve", "CMD [ARG]..."), ("members", "KEY"), ("monitor", "[PATTERN]")]


@pytest.mark.parametrize(("command", "usage"), USAGES)
def test_a_usage_line_is_the_manuals(command: str, usage: str) -> None:
    shown = CliRunner().invoke(application(), [command, "--help"], prog_name="sbusctl").output
    assert shown.splitlines()[0] == f"Usage: sbusctl {command} [OPTIONS] {usage}"


def test_what_typer_escapes_for_rich_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(cls=PlainGroup, rich_markup_mode=None)

    @app.command(cls=PlainCommand, help="One \\[required] of two.")
    def one(_key: Annotated[str, typer.Argument(metavar="KEY", help="A \\[x>=1] key.")]) -> None: ...

    @app.command(cls=PlainCommand, help="Another \\[one].")
    def two() -> None: ...

    monkeypatch.setenv("COLUMNS", "200")
    for arguments in ([], ["one"], ["two"]):
        shown = CliRunner().invoke(app, [*arguments, "--help"]).output
        assert "\\" not in shown
        assert "[" in shown
