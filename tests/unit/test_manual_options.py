"""Each program and command documents its options and arguments with their metavariables and defaults, and no others."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from typing import Any

import pytest
import typer

from sbus import CALL_TRIES
from sbusctl.application import application
from sbusctl.commands.bench import DEFAULT_SECONDS
from sbusctl.commands.sub import DEFAULT_FORMAT
from sbusctl.fresh_tables import ARCHIVE
from sbusctl.group import CALLABLE
from sbusd.daemon import options
from tests.support.manual import Item, items, section, source
from tools.stage import ROOT

_PROGRAMS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]

SERVICES = sorted(_PROGRAMS.keys() - {"sbusd", "sbusctl", "msgbusd"})

USUAL = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]

_CONSTANTS = {"--format": DEFAULT_FORMAT, "--duration": str(DEFAULT_SECONDS), "--retries": str(CALL_TRIES), "--archive": str(ARCHIVE)}
"""The defaults of those options of sbusctl whose value is None unless they are given."""

_DEFAULT = re.compile(r"[Tt]he default is (\S+?)(?=\.(?: |$))|[Dd]efault (\d\w*)\.")

_HELP = frozenset({"--help"})


def _service(program: str) -> list[Any]:
    """Return the options of a service, and of all its commands."""
    command = typer.main.get_command(import_module(_PROGRAMS[program].partition(":")[0]).app)
    commands = [command, *getattr(command, "commands", {}).values()]
    return [each for one in commands for each in one.params if each.param_type_name == "option"]


def _command(name: str) -> tuple[Any, set[frozenset[str]]]:
    """Return a command of sbusctl, and the names of the options that all commands have."""
    group = command = typer.main.get_command(application())
    for word in name.split():
        command = command.get_command(None, word)  # type: ignore[attr-defined]  # it is a group
    return command, {frozenset(each.opts) for each in group.params}


def _documented(text: str) -> dict[frozenset[str], Item]:
    """Return the items about options in *text*."""
    return {item.options: item for item in items(text) if item.head.startswith("Fl ")}


def _commands_text() -> dict[str, str]:
    """Return what sbusctl(1) says of each command."""
    names = "|".join(sorted(CALLABLE, key=len, reverse=True))
    parts = re.split(rf"^\.It Cm ({names})\b", section("sbusctl.1", "COMMANDS"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _default(each: Any) -> str:
    """Return the default of an option; empty without one."""
    constant = next((_CONSTANTS[name] for name in each.opts if name in _CONSTANTS and each.default is None), None)
    return str(constant or each.default or "")


def _assert_described(each: Any, item: Item) -> None:
    """Assert that *item* has the metavariable and the default of an option."""
    metavar = "" if getattr(each, "is_flag", False) else re.findall(r"[\w=:]+", each.metavar.lstrip("[="))[0]
    assert bool(metavar) == (" Ar " in item.head), item.head
    assert metavar in re.sub(r" Ns (Ar )?", "", item.head), item.head
    assert _default(each) in ["", *(found[0] or found[1] for found in _DEFAULT.findall(item.text))], item.head


@pytest.mark.parametrize("program", SERVICES)
def test_the_options_of_a_service_are_those_documented(program: str) -> None:
    documented = _documented(section(f"{program}.8", "OPTIONS"))
    offered = [each for each in _service(program) if "--help" not in each.opts]
    assert documented.keys() - {_HELP} == {frozenset(each.opts) for each in offered}
    for each in offered:
        _assert_described(each, documented[frozenset(each.opts)])


@pytest.mark.parametrize("program", ["sbusd", *SERVICES])
def test_a_page_has_the_usual_sections_in_their_order(program: str) -> None:
    expected = [each for each in USUAL if each != "EXAMPLES" or program != "sbus-live"]
    assert [each for each in re.findall(r"^\.Sh (.*)$", source(f"{program}.8"), re.MULTILINE) if each in USUAL] == expected


@pytest.mark.parametrize("program", ["sbus-feed", "sbus-web"])
def test_the_synopsis_has_all_options(program: str) -> None:
    named = set(re.findall(r"Fl Fl (\S+)", section(f"{program}.8", "SYNOPSIS")))
    assert {f"--{name}" for name in named} == set().union(*_documented(section(f"{program}.8", "OPTIONS")))


def test_the_options_of_sbusd_are_those_documented() -> None:
    offered = {frozenset(each.option_strings) for each in options._parser()._actions}
    assert _documented(section("sbusd.8", "OPTIONS")).keys() == offered


def test_the_options_of_all_commands_are_those_documented() -> None:
    offered = {frozenset(each.opts) for each in typer.main.get_command(application()).params}
    assert _documented(section("sbusctl.1", "OPTIONS")).keys() == offered | {frozenset({"-h", "--help"})}


def test_every_command_is_documented_in_its_order() -> None:
    assert tuple(_commands_text()) == CALLABLE


@pytest.mark.parametrize("name", CALLABLE)
def test_the_options_and_arguments_of_a_command_are_those_documented(name: str) -> None:
    command, common = _command(name)
    text = _commands_text()[name]
    own = {frozenset(each.opts): each for each in command.params if each.param_type_name == "option"}
    documented = _documented(text)
    assert documented.keys() == own.keys() - common
    for names, item in documented.items():
        _assert_described(own[names], item)
        assert _default(own[names]) or "The default is\n.Ql" not in "\n".join(item.lines), item.head
    arguments = [each.metavar.removesuffix("...") for each in command.params if each.param_type_name == "argument"]
    assert [each for each in arguments if f"Ar {each}" not in text.partition("\n")[0]] == []
