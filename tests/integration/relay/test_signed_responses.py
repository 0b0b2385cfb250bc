"""A relay signs nothing for an unauthenticated caller; and a sender ignores unsigned responses."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus_services.relay.http.credentials import NONCE, SIGNATURE
from tests.support.http_requests import PEER, TWIN, HttpPeer, of_peer
from tests.support.relays import Host, free_address, peer_table, require_redis, shared_key

HELD_BODY = json.dumps(of_peer("held")).encode()
"""The request that the attacker holds back and whose headers it knows."""


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key of the peer."""
    return shared_key(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def http_peer(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Iterator[HttpPeer]:
    """A relay with one peer."""
    require_redis()
    host = Host(tmp_path_factory.mktemp("host"), TWIN)
    settings = f'listen = "{free_address()}"\nbody_bytes = "64KiB"\nbody_timeout = "5s"\n'
    host.relay.write(settings, peer_table(PEER, free_address(), key))
    host.relay.start()
    yield HttpPeer(host)
    host.close()
    assert "internal error" not in host.relay.log()


@pytest.mark.parametrize(
    ("attempt", "status"),
    [
        (("POST", "/nowhere", b"", {}), 404),
        (("GET", "/zbus-remote", b"", {}), 405),
        (("POST", "/zbus-remote", b"", {"Content-Length": "70000"}), 413),
        (("POST", "/zbus-remote", b"{}", {}), 401),
        (("POST", "/zbus-remote", b"{}", {"Content-Encoding": "gzip"}), 415),
        (("POST", "/zbus-remote", b"", {"Content-Length": "7"}), 408),
        (("POST", "/zbus-remote", HELD_BODY, {"Sbus-Time": str(int(time.time()) - 1)}), 401),
    ],
)
@pytest.mark.parametrize("forged", [True, False])
def test_rejection_of_an_unsigned_request_is_not_signed(
    http_peer: HttpPeer, key: Path, attempt: tuple[str, str, bytes, dict[str, str]], status: int, forged: bool
) -> None:
    """Neither for the nonce alone, nor for the observed signature with another path or body."""
    method, path, body, more = attempt
    seen = http_peer.headers(key, HELD_BODY)
    headers = {**seen, **({SIGNATURE: "0" * 64} if forged else {}), **more}
    found, said, answer = http_peer.exchange(method, path, body, headers)
    assert (found, SIGNATURE in answer) == (status, False), said


def test_a_refusal_of_a_signed_request_is_signed(http_peer: HttpPeer, key: Path) -> None:
    body = json.dumps(of_peer("x", exp="soon")).encode()
    status, said, answer = http_peer.exchange("POST", "/zbus-remote", body, http_peer.headers(key, body))
    assert (status, len(answer[SIGNATURE])) == (400, 64), said


def test_two_requests_with_one_nonce_have_different_responses(http_peer: HttpPeer, key: Path) -> None:
    """The signed response to one cannot be passed off as the response to the other."""
    bodies = [json.dumps(of_peer("x", exp="soon", now=number)).encode() for number in (1, 2)]
    first = http_peer.headers(key, bodies[0])
    second = {**http_peer.headers(key, bodies[1]), NONCE: first[NONCE]}
    assert first[SIGNATURE] != second[SIGNATURE]
    statuses = [http_peer.exchange("POST", "/zbus-remote", bodies[0], first), http_peer.exchange("POST", "/zbus-remote", bodies[1], second)]
    # The signature of the second covers its own nonce, so it is rejected without a signature.
    assert [(status, SIGNATURE in answer) for status, _, answer in statuses] == [(400, True), (401, False)]


def test_a_compressed_body_is_refused_before_it_is_inflated(http_peer: HttpPeer, key: Path) -> None:
    """Even from an authenticated peer: the signature covers the bytes, not their encoding."""
    plain = json.dumps(of_peer("packed")).encode()
    for body in (gzip.compress(plain), plain, gzip.compress(b"x" * 10_000_000)):
        headers = {**http_peer.headers(key, body), "Content-Encoding": "gzip"}
        status, said, _ = http_peer.exchange("POST", "/zbus-remote", body, headers)
        assert (status, b"Content-Encoding: gzip is not accepted" in said) == (415, True)
    assert http_peer.host.redis.llen("msgbus.packed") == 0
