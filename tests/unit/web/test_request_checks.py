"""Hosts, origins and logins that are accepted, and the headers of every response."""

from __future__ import annotations

import pytest

from sbusd.web.addresses import ListenAddress
from sbusd.web.logins import Logins
from sbusd.web.request_checks import RejectedError, check_key, check_login, check_origin, response_headers

ADDRESS = ListenAddress("127.0.0.1", 8080)


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080"])
@pytest.mark.parametrize("origin", [None, "http://127.0.0.1:8080", "http://localhost:8080"])
def test_the_own_host_and_origin(host: str, origin: str | None) -> None:
    check_origin(ADDRESS, host, origin, is_required=origin is not None)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (None, None),
        ("", None),
        ("evil.example", None),
        ("evil.example:8080", "http://evil.example:8080"),
        ("127.0.0.1", None),
        ("127.0.0.1:80", None),
        ("127.0.0.1:8080.evil.example", None),
        ("localhost.:8080", None),
        ("127.0.0.1:8080", "null"),
        ("127.0.0.1:8080", ""),
        ("127.0.0.1:8080", "https://127.0.0.1:8080"),
        ("127.0.0.1:8080", "http://127.0.0.1:8081"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/"),
    ],
)
def test_another_host_or_origin_is_rejected(host: str | None, origin: str | None) -> None:
    with pytest.raises(RejectedError) as rejected:
        check_origin(ADDRESS, host, origin, is_required=False)
    assert rejected.value.status == 403


def test_a_required_origin_must_be_there() -> None:
    with pytest.raises(RejectedError, match="origin ''"):
        check_origin(ADDRESS, "127.0.0.1:8080", None, is_required=True)


def test_a_rejected_name_is_shown_safely() -> None:
    with pytest.raises(RejectedError) as rejected:
        check_origin(ADDRESS, "\x1b[2J" + "x" * 500, None, is_required=False)
    assert "\x1b" not in rejected.value.words
    assert len(rejected.value.words) < 200


def test_a_session_needs_the_key_of_its_own_login() -> None:
    logins = Logins()
    login, other = logins.exchange(logins.token), logins.exchange(logins.token)
    assert login is not None
    assert other is not None
    assert check_login(logins, login.cookie) is login
    check_key(login, f"sbus-web, key.{login.key}")
    for protocols, status in {
        "": 400,
        f"key.{login.key}": 400,
        "sbus-web": 403,
        "sbus-web, key.": 403,
        f"sbus-web, key.{other.key}": 403,
        f"sbus-web, key.{login.key}, key.{login.key}": 403,
        f"sbus-web, key.{login.cookie}": 403,
    }.items():
        with pytest.raises(RejectedError) as rejected:
            check_key(login, protocols)
        assert rejected.value.status == status, protocols
    for cookie in (None, "", login.key):
        with pytest.raises(RejectedError) as rejected:
            check_login(logins, cookie)
        assert rejected.value.status == 401


def test_the_policy_names_no_other_origin_and_no_inline_script() -> None:
    policy = response_headers(ADDRESS)["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "*" not in policy
    assert "ws://127.0.0.1:8080 ws://localhost:8080" in policy
