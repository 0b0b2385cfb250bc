"""Subjects, spelled out."""

from __future__ import annotations

import pytest

from sbus_services.link.subjects import Arrival, Subjects, key_tokens, pattern_tokens

LINK = Subjects("R", "beta")


@pytest.mark.parametrize(
    ("key", "tokens"),
    [
        (b"net/link/eth0", "net.link.eth0"),
        (b"", "="),
        (b"a//b/", "a.=.b.="),
        (b"a.b/\xff", "a=2Eb.=FF"),
        (b"/".join([b"a"] * 25), "a." * 24 + "=c"),
    ],
)
def test_a_key_has_these_tokens(key: bytes, tokens: str) -> None:
    assert key_tokens(key) == tokens


@pytest.mark.parametrize(
    ("pattern", "tokens"),
    [(b"", ">"), (b"a/", "a.>"), (b"a/*", "a.*"), (b"a/*/c/", "a.*.c.>"), (b"ab*/c", "*.c"), (b"/".join([b"a"] * 25), "a." * 24 + ">")],
)
def test_a_pattern_has_these_tokens(pattern: bytes, tokens: str) -> None:
    assert pattern_tokens(pattern) == tokens


def test_the_longest_subject_fits_into_the_control_line_of_a_server() -> None:
    assert len(Subjects("R" * 63, "b" * 63).message(b"/".join([b"\xff" * 169] * 24)[:4_096])) < 2_600


def test_a_host_publishes_under_its_own_name() -> None:
    assert LINK.message(b"net/x") == "s.R.m.beta.net.x"
    assert (LINK.interest, LINK.heartbeat, LINK.direct("alpha")) == ("s.R.i.beta", "s.R.h.beta", "s.R.x.alpha.beta")
    assert (LINK.wanted(b"alpha", b"net/"), LINK.wanted(b"al*", b"")) == ("s.R.m.alpha.net.>", "s.R.m.*.>")


def test_an_arriving_subject_names_its_origin() -> None:
    assert LINK.parse("s.R.x.beta.alpha") == Arrival("x", "alpha")
    assert LINK.parse("s.R.m.alpha.net.x") == Arrival("m", "alpha")
    assert LINK.parse("s.R.x.gamma.alpha") is None
    assert LINK.parse("s.R.h.beta") is None
