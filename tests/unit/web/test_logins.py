"""A token works once, guesses are limited, and the number of logins is bounded."""

from __future__ import annotations

import pytest

from sbusd.web.logins import FAILURE_SECONDS, MAX_FAILURES, MAX_LOGINS, Login, Logins, TooManyFailuresError, is_equal


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def logged_in(logins: Logins) -> Login:
    login = logins.exchange(logins.token)
    assert login is not None
    return login


def test_a_token_works_once() -> None:
    logins = Logins()
    token = logins.token
    login = logged_in(logins)
    assert logins.token != token
    assert logins.exchange(token) is None
    assert logins.find(login.cookie) is login
    assert len({token, logins.token, login.cookie, login.key}) == 4


@pytest.mark.parametrize("wrong", ["", "x", "\udcff", "ü", "x" * 100_000])
def test_any_text_is_compared(wrong: str) -> None:
    logins = Logins()
    assert logins.exchange(wrong) is None
    assert logins.find(wrong) is None
    assert not is_equal(wrong, logins.token)
    assert is_equal(logins.token, logins.token)


def test_a_key_or_token_is_not_a_cookie() -> None:
    logins = Logins()
    login = logged_in(logins)
    assert logins.find(login.key) is None
    assert logins.find(logins.token) is None


def test_guesses_are_limited_for_a_time() -> None:
    clock = Clock()
    logins = Logins(clock)
    for _ in range(MAX_FAILURES):
        assert logins.exchange("wrong") is None
        clock.now += 1
    with pytest.raises(TooManyFailuresError):
        logins.exchange(logins.token)
    assert logins.wrong_tokens == MAX_FAILURES + 1
    clock.now = 1_000.0 + FAILURE_SECONDS - 0.1
    with pytest.raises(TooManyFailuresError):
        logins.exchange(logins.token)
    clock.now = 1_000.0 + FAILURE_SECONDS
    logged_in(logins)


def test_the_oldest_login_ends_first() -> None:
    logins = Logins()
    made = [logged_in(logins) for _ in range(MAX_LOGINS + 1)]
    assert logins.count == MAX_LOGINS
    assert logins.find(made[0].cookie) is None
    assert all(logins.find(each.cookie) is each for each in made[1:])


def test_secrets_are_not_in_texts() -> None:
    login = Login()
    assert login.key not in repr(login)
    assert login.cookie not in repr(login)
