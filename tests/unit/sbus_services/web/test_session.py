"""The lists of what browsers may subscribe to and publish; tests/property/test_pattern_index.py tries what a pattern covers."""

from __future__ import annotations

import pytest

from sbus.protocol.errors import ErrorCode
from sbus_services.web.session import EVERY_ORDINARY_KEY, AllowList, NotAllowedError


def test_the_lists_are_separate_and_say_which_option_helps() -> None:
    made = AllowList.of(["net/"], ["lab/", "x"])
    made.check_pattern(b"net/link/*")
    made.check_key(b"lab/1")
    made.check_key(b"x")
    with pytest.raises(NotAllowedError, match="--allow for it") as refused:
        made.check_pattern(b"lab/")
    assert refused.value.code is ErrorCode.EPERM
    with pytest.raises(NotAllowedError, match="--allow-publish"):
        made.check_key(b"net/x")


def test_an_empty_list_allows_nothing_and_the_default_nothing_reserved() -> None:
    with pytest.raises(NotAllowedError):
        AllowList.of([], []).check_pattern(b"a")
    default = AllowList.of([EVERY_ORDINARY_KEY], [EVERY_ORDINARY_KEY])
    for key in (b"!/cred//1//x", b"!/conn/1/x", b"!/event/connect/1"):
        with pytest.raises(NotAllowedError):
            default.check_key(key)
        with pytest.raises(NotAllowedError):
            default.check_pattern(key)


def test_a_pattern_that_matches_no_key_needs_the_default() -> None:
    """On a bus with the separator "." it matches keys."""
    AllowList.of([EVERY_ORDINARY_KEY], []).check_pattern(b"a*.b")
    with pytest.raises(NotAllowedError):
        AllowList.of(["a/"], []).check_pattern(b"a/b*.c")


@pytest.mark.parametrize("pattern", ["a*b", "a/*b/c", "!/cred/", "!/*/x", "!/cred/*/1/1/x"])
def test_a_pattern_that_matches_no_key_is_a_mistake(pattern: str) -> None:
    with pytest.raises(ValueError, match="matches no key"):
        AllowList.of([pattern], [])
    with pytest.raises(ValueError, match="matches no key"):
        AllowList.of([], [pattern])
