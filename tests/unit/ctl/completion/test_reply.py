"""Replies to shells, without a bus."""

from __future__ import annotations

import pytest

from sbusd.ctl.completion.reply import complete

_BREAKS = " \t\n\"'@><=;|&(:"


@pytest.fixture(autouse=True)
def _no_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBUS_ADDRESS", "/nonexistent")


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("sbusctl conn", ["words", "connections"]),
        ("sbusctl --sys", ["words", "--system"]),
        ("sbusctl top --sort=blocked-", ["words", "blocked-by"]),
        ("sbusctl top --sort 'blocked-", ["words", "blocked-by"]),
        ("sbusctl sub $HO", ["files"]),
        ("sbusctl -a ", ["files"]),
        ("sbusctl pub ", ["words"]),
        ("sbusctl", ["words"]),
    ],
)
def test_bash(line: str, lines: list[str]) -> None:
    reply = complete(["bash", line, _BREAKS])
    assert reply == lines or (line == "sbusctl" and reply[0] == "words")


def test_zsh_and_fish_get_descriptions() -> None:
    expected = ["words", "connections\tList connections and their counters."]
    assert complete(["zsh", "conn"]) == expected
    assert complete(["fish", "'conn"]) == expected
    assert complete(["zsh", "top", "--sort=blocked-"]) == ["words", "--sort=blocked-by\t"]


@pytest.mark.parametrize("arguments", [[], ["bash"], ["zsh"], ["tcsh", "a"]])
def test_invalid_requests_are_not_answered(arguments: list[str]) -> None:
    assert complete(arguments) == []


def test_users_and_groups() -> None:
    assert "root\t" in complete(["zsh", "explain", "roo"])
    assert "root\t" in complete(["fish", "serve", "--allow-group", "roo"])
