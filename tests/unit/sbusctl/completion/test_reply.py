"""Replies to shells, without a bus."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbusctl.completion.reply import complete, completion_of, quoted, split_line, unquoted

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


@pytest.mark.parametrize(
    ("line", "words", "last"),
    [
        ("sbusctl", [], "sbusctl"),
        ("sbusctl ", ["sbusctl"], ""),
        ("sbusctl  pub 'a b'  \"c d", ["sbusctl", "pub", "a b"], "c d"),
        (r'sbusctl a\ b "c\"d\e" x\'', ["sbusctl", "a b", 'c"d\\e'], "x'"),
        ("sbusctl sub k >file --raw ", ["sbusctl", "sub", "k", "--raw"], ""),
        ("sbusctl sub k 2> 'a b' 2", ["sbusctl", "sub", "k"], "2"),
        ("sbusctl a:b=c", ["sbusctl"], "a:b=c"),
    ],
)
def test_words(line: str, words: list[str], last: str) -> None:
    found, word = split_line(line, _BREAKS)
    assert (found, word.text) == (words, last)


@pytest.mark.parametrize("line", ["pub $HO", "pub `ls", 'pub "$HO', "sub k > fi", "sub k 2>"])
def test_what_bash_expands_is_left_to_bash(line: str) -> None:
    assert split_line(line, _BREAKS)[1].is_expanded


@pytest.mark.parametrize("line", [r"pub \$HO", "pub '$HO", "pub a"])
def test_what_bash_does_not_expand_is_completed(line: str) -> None:
    assert not split_line(line, _BREAKS)[1].is_expanded


@pytest.mark.parametrize(
    ("typed", "value", "inserted"),
    [
        ("", "a b", r"a\ b"),
        ("!/c", "!/cred/", r"\!/cred/"),
        (r"\!/c", "!/cred/", r"\!/cred/"),
        ("'!/c", "!/cred/", "!/cred/"),
        ('"!/c', "!/cred/", None),
        ('"a', "a!b", None),
        ('"a', 'a$b"', '''a\\$b"\\"'''),
        ("'a", "a'b'", r"a'\''b'\'"),
        ("'a'b", "abc", "'a'bc"),
        ("a:b", "a:b:c", r"b\:c"),
        ("--sort=bl", "--sort=blocks", "blocks"),
        (r"a\:b", "a:bc", r"a\:bc"),
        ("!a:b", "!a:bc", None),
        ("a\\", "ab", None),
        (r"a\\", r"a\b", r"a\\b"),
    ],
)
def test_the_rest_is_quoted_as_it_was_begun(typed: str, value: str, inserted: str | None) -> None:
    assert completion_of(split_line(f"pub {typed}", _BREAKS)[1], value) == inserted


_TEXT = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), max_size=20)


@example("\\", 1, '"')
@given(_TEXT, st.integers(0, 20), st.sampled_from(["", "'", '"', "\\"]))
def test_what_is_inserted_is_the_value(value: str, length: int, style: str) -> None:
    """As shlex(3) reads it, which does not know that a backslash before $ and ` is special in double quotes."""
    if style == '"':
        value = value.translate({ord("$"): None, ord("`"): None})
    begin = value[:length]
    raw = _written(begin, style)
    word = split_line(raw, _BREAKS)[1]
    assert word.text == begin
    inserted = completion_of(word, value)
    if inserted is None:
        assert style == '"'
        assert "!" in value
        return
    line = raw[: word.quote_start if word.quote else 0] + inserted
    # readline closes an open quote.
    assert "".join(shlex.split(line + split_line(line, "")[1].quote)) == value


def _written(text: str, style: str) -> str:
    """Return *text* as a user writes it who begins with *style*."""
    if style == "'":
        return "'" + text.replace("'", r"'\''")
    if style == '"':
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"')
    return text if text.isalnum() and not style else quoted(text)


def test_a_word_of_fish() -> None:
    assert unquoted("'a b") == "a b"
    assert unquoted(r"a\ b") == "a b"
