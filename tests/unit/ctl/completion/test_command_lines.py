"""What a command line expects next."""

from __future__ import annotations

import pytest

from sbusd.ctl.completion.command_lines import Kind, expected_after
from sbusd.ctl.group import ACTIONS, COMMANDS
from sbusd.ctl.settings import Settings


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("pub ", Kind.KEY),
        ("--user pub -l ", Kind.KEY),
        ("pub k ", Kind.NOTHING),
        ("--json pub ", Kind.KEY),
        ("pub --json ", Kind.KEY),
        ("pub -- ", Kind.KEY),
        ("sub a b c ", Kind.PATTERN),
        ("sub -n ", Kind.NOTHING),
        ("sub -n 3 ", Kind.PATTERN),
        ("call ", Kind.SERVICE),
        ("explain ", Kind.USER),
        ("explain root publish ", Kind.KEY),
        ("explain root subscribe ", Kind.PATTERN),
        ("serve --allow-group ", Kind.GROUP),
        ("serve cmd --exec ", Kind.FILE),
        ("report --output=", Kind.FILE),
        ("record --pattern=", Kind.PATTERN),
        ("members a b ", Kind.NOTHING),
        ("unknown ", Kind.NOTHING),
        ("store unknown ", Kind.NOTHING),
        ("store put ", Kind.KEY),
        ("store -j read --match ", Kind.PATTERN),
        ("store read ", Kind.STREAM),
        ("store read log --reader ", Kind.NOTHING),
        ("store forget ", Kind.STREAM),
        ("store forget log ", Kind.KEY),
        ("store revive ", Kind.QUEUE),
        ("store work ", Kind.QUEUE),
        ("store work mail ", Kind.FILE),
        ("store peek ", Kind.STREAM),
        ("store peek --queue ", Kind.QUEUE),
        ("store purge --match x ", Kind.STREAM),
        ("sub --unknown=", Kind.NOTHING),
    ],
)
def test_the_kind_of_the_next_word(line: str, kind: Kind) -> None:
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
