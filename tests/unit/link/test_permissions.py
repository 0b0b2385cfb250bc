"""What a host may publish and subscribe to, and the matching of subjects with wildcards."""

from __future__ import annotations

import pytest

from sbusd.link.permissions import covers, is_within, published_by, received_by
from sbusd.link.subjects import Subjects


@pytest.mark.parametrize(
    ("allowed", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a", False),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.*", True),
        ("a.*", "a.>", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b", True),
        ("a.>", "a.*", True),
        ("a.>", "a.>", True),
        ("a.>", "a.b.>", True),
        ("a.>", "a", False),
        ("a.b", "a.*", False),
        ("a.b", "*.b", False),
        ("a.b", ">", False),
        ("*.b", "a.b", True),
        (">", ">", True),
        ("a.*.c", "a.>", False),
        ("a.*.c", "a.b.>", False),
        ("a.*.>", "a.b.>", True),
        ("a.*.>", "a.>", False),
    ],
)
def test_a_subject_covers_another(allowed: str, subject: str, expected: bool) -> None:
    assert covers(allowed, subject) is expected


@pytest.mark.parametrize("subject", ["s.R.m.alpha.a", "s.R.m.alpha.=", "s.R.i.alpha", "s.R.h.alpha", "s.R.x.beta.alpha"])
def test_a_host_publishes_under_its_own_name(subject: str) -> None:
    assert is_within(subject, published_by("R", "alpha"))
    assert not is_within(subject, published_by("R", "beta"))
    assert not is_within(subject, published_by("S", "alpha"))


@pytest.mark.parametrize(
    "subject", ["s.R.m.alpha", "s.R.m.alphabet.a", "s.R.x.alpha.beta", "s.R.x.beta.alpha.more", "s.R.h.alpha.more", "a", ""]
)
def test_everything_else_is_not_published(subject: str) -> None:
    assert not is_within(subject, published_by("R", "alpha"))


def test_only_what_is_for_all_or_for_the_host_itself_is_received() -> None:
    allowed = received_by("R", "alpha")
    for subject in ("s.R.m.*.net.>", "s.R.m.beta.a", "s.R.m.>", "s.R.i.*", "s.R.h.*", "s.R.x.alpha.*", "s.R.x.alpha.beta"):
        assert is_within(subject, allowed), subject
    for subject in (
        "s.R.x.*.*",
        "s.R.x.beta.*",
        "s.R.x.>",
        "s.R.x.*.alpha",
        "s.R.>",
        ">",
        "*.R.m.a",
        "s.*.m.a",
        "s.S.m.a",
        "s.R.x.alpha.>",
    ):
        assert not is_within(subject, allowed), subject


def test_the_protocol_needs_no_other_permissions() -> None:
    subjects = Subjects("R", "alpha")
    published = (subjects.interest, subjects.heartbeat, subjects.direct("beta"), subjects.message(b""), subjects.message(b"a//\xff/" * 40))
    received = (
        *subjects.always,
        *(subjects.wanted(origins, pattern) for origins in (b"beta", b"*") for pattern in (b"", b"a/*/b/", b"a*")),
    )
    assert [each for each in published if not is_within(each, published_by("R", "alpha"))] == []
    assert [each for each in received if not is_within(each, received_by("R", "alpha"))] == []
