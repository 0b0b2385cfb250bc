"""Hosts, origins and logins that are accepted, and the headers of every response."""

from __future__ import annotations

import pytest

from sbus_services.web.logins import Logins
from sbus_services.web.server import ListenAddress, RejectedError, check_key, check_login, check_origin, response_headers

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


@pytest.mark.parametrize(
    ("text", "host", "port", "authority"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, "127.0.0.1:8080"),
        ("127.9.8.7:0", "127.9.8.7", 0, "127.9.8.7:0"),
        ("localhost:1", "127.0.0.1", 1, "127.0.0.1:1"),
        ("[::1]:65535", "::1", 65535, "[::1]:65535"),
        ("127.0.0.1:80", "127.0.0.1", 80, "127.0.0.1"),
    ],
)
def test_a_loopback_address(text: str, host: str, port: int, authority: str) -> None:
    address = ListenAddress.parse(text)
    assert (address.host, address.port, address.authority) == (host, port, authority)
    assert authority in address.authorities
    assert f"http://{authority}" in address.origins


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not HOST:PORT"),
        ("127.0.0.1", "is not HOST:PORT"),
        (":80", "is not HOST:PORT"),
        ("127.0.0.1:x", "is not HOST:PORT"),
        ("127.0.0.1:-1", "is not HOST:PORT"),
        ("127.0.0.1:٣", "is not HOST:PORT"),
        ("127.0.0.1:65536", "is not HOST:PORT"),
        ("127.0.0.1:" + "9" * 5_000, "is not HOST:PORT"),
        ("::1:80", "in brackets"),
        ("[127.0.0.1]:80", "in brackets"),
        ("0.0.0.0:80", "is not a loopback address"),
        ("[::]:80", "is not a loopback address"),
        ("192.0.2.1:80", "ssh -L"),
        ("127.0.0.1.evil.example:80", "is not a loopback address"),
    ],
)
def test_another_address_is_rejected(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("[", r"\[")):
        ListenAddress.parse(text)


def test_the_default_port_is_left_out_as_browsers_do() -> None:
    assert ListenAddress("127.0.0.1", 80).authorities == {"127.0.0.1", "localhost"}
    assert ListenAddress("127.0.0.1", 81).origins == {"http://127.0.0.1:81", "http://localhost:81"}
