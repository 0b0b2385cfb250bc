"""sbusctl(1) documents every option and every default, and no other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from sbusd.client import CALL_TRIES
from sbusd.ctl.application import application
from sbusd.ctl.commands.bench import DEFAULT_SECONDS
from sbusd.ctl.commands.sub import DEFAULT_FORMAT
from sbusd.ctl.fresh_tables import ARCHIVE
from sbusd.ctl.group import CALLABLE
from tests.support import skips

_MANUAL = Path(__file__).parents[3] / "man" / "sbusctl.1"
_CONSTANTS = {
    "--format": DEFAULT_FORMAT,
    "--duration": str(DEFAULT_SECONDS),
    "--retries": str(CALL_TRIES),
    "--archive": str(ARCHIVE),
}
"""The defaults of options that are None if they are not given."""

_ITEM = re.compile(r"^\.It (Fl .*)$")
_DEFAULT = re.compile(r"The default is\n\.Ql (\S+?)(?: \.)?$", re.MULTILINE)


def _section(title: str) -> str:
    """Return one section of the manual page."""
    return _MANUAL.read_text("utf-8").split(f"\n.Sh {title}\n")[1].split("\n.Sh ")[0]


def _documented(text: str) -> dict[frozenset[str], str | None]:
    """Return the options that *text* describes, by their names, and the default that it states for each."""
    options: dict[frozenset[str], str | None] = {}
    for part in re.split(r"(?=^\.It )", text, flags=re.MULTILINE):
        if match := _ITEM.match(part.partition("\n")[0]):
            names = frozenset(f"-{name}" for name in re.findall(r"Fl (\S+)", match[1]))
            stated = _DEFAULT.search(part)
            options[names] = stated[1].replace(r"\e", "\\").replace(r"\&", "") if stated else None
    return options


def _commands_text() -> dict[str, str]:
    """Return what the manual page says of each command."""
    names = "|".join(sorted(CALLABLE, key=len, reverse=True))
    parts = re.split(rf"^\.It Cm ({names})\b", _section("COMMANDS"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _options(parameters: list[Any]) -> dict[frozenset[str], Any]:
    """Return the options among *parameters*, by their names, with their defaults."""
    return {frozenset(each.opts): each.default for each in parameters if each.param_type_name == "option"}


def _group() -> Any:
    return typer.main.get_command(application())


def _command(name: str) -> Any:
    group = command = _group()
    for word in name.split():
        command = command.get_command(None, word)
    return command, {frozenset(each.opts) for each in group.params}


def test_the_common_options_are_those_documented() -> None:
    documented = _documented(_section("OPTIONS"))
    assert set(documented) == {*_options(_group().params), frozenset({"-h", "--help"})}


def test_every_command_is_documented_in_its_order() -> None:
    assert tuple(_commands_text()) == CALLABLE


@pytest.mark.parametrize("name", CALLABLE)
def test_the_options_of_a_command_and_their_defaults_are_those_documented(name: str) -> None:
    command, common = _command(name)
    own = {names: default for names, default in _options(command.params).items() if names not in common}
    documented = _documented(_commands_text()[name])
    assert set(documented) == set(own)
    for names, default in own.items():
        constant = next((_CONSTANTS[each] for each in names if each in _CONSTANTS and default is None), None)
        expected = constant or (None if default in (None, False, "") else str(default))
        assert documented[names] == expected, names


@pytest.mark.parametrize("name", CALLABLE)
def test_the_arguments_of_a_command_are_those_documented(name: str) -> None:
    command, _ = _command(name)
    synopsis = _commands_text()[name].partition("\n")[0]
    for each in command.params:
        if each.param_type_name == "argument":
            assert f"Ar {each.metavar.removesuffix('...')}" in synopsis


def test_the_page_is_clean() -> None:
    skips.require_program("mandoc", "mandoc")
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "style", str(_MANUAL)], capture_output=True, text=True, check=False)
    # Other pages need not be installed on this machine.
    assert [line for line in done.stdout.splitlines() if "referenced manual not found" not in line] == []


def test_man_has_no_warnings() -> None:
    skips.require_program("man", "man-db")
    command = ["man", "--warnings", "-l", str(_MANUAL)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    assert done.stderr == ""
    assert "doctor" in done.stdout
