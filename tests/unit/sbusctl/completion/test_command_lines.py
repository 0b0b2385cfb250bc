"""What a command line expects next."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from sbusctl.application import application
from sbusctl.completion.command_lines import ValueKind, expected_after, parameters_of
from sbusctl.group import ACTIONS, CALLABLE, COMMANDS, command_function
from sbusctl.settings import Settings, common_options


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("pub ", ValueKind.KEY),
        ("--user pub -l ", ValueKind.KEY),
        ("pub k ", ValueKind.NOTHING),
        ("--json pub ", ValueKind.KEY),
        ("pub --json ", ValueKind.KEY),
        ("pub -- ", ValueKind.KEY),
        ("sub a b c ", ValueKind.PATTERN),
        ("sub -n ", ValueKind.NOTHING),
        ("sub -n 3 ", ValueKind.PATTERN),
        ("call ", ValueKind.SERVICE),
        ("explain ", ValueKind.USER),
        ("explain root publish ", ValueKind.KEY),
        ("explain root subscribe ", ValueKind.PATTERN),
        ("serve --allow-group ", ValueKind.GROUP),
        ("serve cmd --exec ", ValueKind.FILE),
        ("report --output=", ValueKind.FILE),
        ("record --pattern=", ValueKind.PATTERN),
        ("members a b ", ValueKind.NOTHING),
        ("unknown ", ValueKind.NOTHING),
        ("store unknown ", ValueKind.NOTHING),
        ("store put ", ValueKind.KEY),
        ("store -j read --match ", ValueKind.PATTERN),
        ("store read ", ValueKind.STREAM),
        ("store read log --reader ", ValueKind.NOTHING),
        ("store forget ", ValueKind.STREAM),
        ("store forget log ", ValueKind.KEY),
        ("store revive ", ValueKind.QUEUE),
        ("store work ", ValueKind.QUEUE),
        ("store work mail ", ValueKind.FILE),
        ("store peek ", ValueKind.STREAM),
        ("store peek --queue ", ValueKind.QUEUE),
        ("store purge --match x ", ValueKind.STREAM),
        ("sub --unknown=", ValueKind.NOTHING),
    ],
)
def test_the_kind_of_the_next_word(line: str, kind: ValueKind) -> None:
    *words, last = line.split(" ")
    assert expected_after(words, last).kind is kind


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", set(COMMANDS)),
        ("--user ", set(COMMANDS)),
        ("completion ", {"bash", "zsh", "fish"}),
        ("relay ", {"status"}),
        ("link ", {"status", "sync", "config"}),
        ("explain root ", {"publish", "subscribe"}),
        ("--user store --json=off ", set(ACTIONS["store"])),
    ],
)
def test_words(line: str, words: set[str]) -> None:
    *before, last = line.split(" ")
    assert {word for word, _ in expected_after(before, last).words} == words


def test_options_are_those_of_the_command_and_of_all() -> None:
    names = {word for word, _ in expected_after(["ping"], "-").words}
    assert {"--count", "--interval", "--system", "--json", "--help"} <= names
    assert "--raw" not in names
    assert expected_after(["pub", "--"], "-").words == []
    assert "--before" in {word for word, _ in expected_after(["store", "purge"], "-").words}
    assert "--before" not in {word for word, _ in expected_after(["store", "read"], "-").words}


def test_the_bus_is_the_selected_one() -> None:
    assert expected_after(["-a", "/x", "pub"], "").settings.address == "/x"
    assert expected_after(["pub", "--address=/x"], "").settings.address == "/x"
    assert expected_after(["pub", "--user"], "").settings.scope == "user"
    # Options that exclude each other are the affair of the command.
    assert expected_after(["--system", "pub", "--user"], "").settings == Settings(scope="system")


def _group() -> Any:
    return typer.main.get_command(application())


@pytest.mark.parametrize("name", ["", *CALLABLE])
def test_they_are_those_of_typer(name: str) -> None:
    group = command = _group()
    for word in name.split():
        command = command.get_command(None, word)
    declared = parameters_of(command_function(name) if name else common_options)
    common = {each.name for each in group.params}
    own = [each for each in command.params if not name or each.name not in common]
    assert {each.name for each in declared} == {each.name for each in own}
    for each in own:
        found = next(one for one in declared if one.name == each.name)
        is_option = each.param_type_name == "option"
        assert set(found.opts) == (set(each.opts) if is_option else set())
        assert found.takes_value == (not is_option or not each.is_flag)
        assert found.repeats == (each.multiple if is_option else each.nargs == -1)


def test_what_is_not_declared_for_typer_is_an_error() -> None:
    def plain(key: str) -> None:
        del key

    with pytest.raises(TypeError, match="key is not annotated"):
        parameters_of(plain)
