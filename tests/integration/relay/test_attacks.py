"""Attacks on a relay, from the network and from local users: each is rejected, logged and counted."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_requests import OTHER, PEER, TWIN, HttpPeer, of_peer, socket_state
from tests.support.relays import Host, data_of, free_address, peer_table, request, require_redis, shared_key, wait_for


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A key for each peer."""
    folder = tmp_path_factory.mktemp("keys")
    return {twin: shared_key(folder, str(twin)) for twin in (PEER, OTHER)}


@pytest.fixture(scope="module")
def http_peer(tmp_path_factory: pytest.TempPathFactory, keys: dict[int, Path]) -> Iterator[HttpPeer]:
    """A relay whose peers are the test."""
    require_redis()
    host = Host(tmp_path_factory.mktemp("host"), TWIN)
    limits = 'body_bytes = "64KiB"\nbody_timeout = "5s"\naddress_connections = 8\nqueue_messages = 500\npeer_requests = 60\n'
    peers = "".join(peer_table(twin, free_address(), key) for twin, key in keys.items())
    host.relay.write(f'listen = "{free_address()}"\n{limits}', peers)
    host.relay.start()
    yield HttpPeer(host)
    host.close()
    assert "internal error" not in host.relay.log()


def refused(http_peer: HttpPeer, act: Callable[[], tuple[int, dict[str, Any]]], status: int, says: str, reported: str) -> None:
    """Check that *act* is rejected with *status* and *says*, that *reported* is logged, and that no message was stored."""
    before = http_peer.host.redis.dbsize(), http_peer.host.counters().get("requests-received", 0)
    found, answer = act()
    assert (found, says in answer["error"]) == (status, True), (found, answer)
    http_peer.host.relay.wait_logged(reported)
    after = http_peer.host.counters()
    assert after.get("requests-received", 0) == before[1]
    assert http_peer.host.redis.llen("msgbus.system.remote") == 0


def test_a_peer_is_served(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    assert http_peer.signed(keys[PEER], of_peer("served", dat="aGk="))[0] == 200
    assert data_of(http_peer.host.receive("msgbus.served")) == b"hi"


def test_unsigned_request_is_rejected(http_peer: HttpPeer) -> None:
    body = json.dumps(of_peer()).encode()
    refused(http_peer, lambda: http_peer.post("/zbus-remote", body, {}), 401, "not signed", "unauthenticated requests")


def test_an_unknown_peer_is_refused(http_peer: HttpPeer, tmp_path: Path) -> None:
    unknown_key = shared_key(tmp_path)
    refused(
        http_peer,
        lambda: http_peer.signed(unknown_key, of_peer(src=4711), twin=4711),
        401,
        "no key for host 4711",
        "unauthenticated requests",
    )


def test_a_wrong_key_is_refused(http_peer: HttpPeer, tmp_path: Path) -> None:
    wrong = shared_key(tmp_path)
    refused(http_peer, lambda: http_peer.signed(wrong, of_peer()), 401, "signature is not that of host 1002", "unauthenticated requests")


def test_a_changed_body_is_refused(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    headers = http_peer.headers(keys[PEER], json.dumps(of_peer()).encode())
    refused(
        http_peer,
        lambda: http_peer.post("/zbus-remote", json.dumps(of_peer("rm")).encode(), headers),
        401,
        "signature",
        "unauthenticated requests",
    )


def test_another_path_is_refused(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    body = json.dumps(of_peer()).encode()
    refused(
        http_peer,
        lambda: http_peer.post("/zbus-reply", body, http_peer.headers(keys[PEER], body)),
        401,
        "signature",
        "unauthenticated requests",
    )


def test_message_for_another_host_is_rejected(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    refused(http_peer, lambda: http_peer.signed(keys[PEER], of_peer(), to=OTHER), 401, "signature", "unauthenticated requests")
    refused(http_peer, lambda: http_peer.signed(keys[PEER], of_peer(dst=[OTHER])), 421, "this is host 1001", "messages from 127.0.0.1")


def test_a_replayed_request_is_refused(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    body = json.dumps(of_peer("once")).encode()
    headers = http_peer.headers(keys[PEER], body)
    assert http_peer.post("/zbus-remote", body, headers)[0] == 200
    assert http_peer.host.receive("msgbus.once")
    refused(http_peer, lambda: http_peer.post("/zbus-remote", body, headers), 401, "was sent before", "replayed or wrongly timed")


@pytest.mark.parametrize("seconds", [-120, 120])
def test_a_clock_that_is_wrong_is_refused(http_peer: HttpPeer, keys: dict[int, Path], seconds: int) -> None:
    says = "s; the limit is 60 s"
    refused(http_peer, lambda: http_peer.signed(keys[PEER], of_peer(), now=time.time() + seconds), 401, says, "replayed or wrongly timed")


def test_a_clock_that_is_a_little_wrong_makes_nothing_expire(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    for seconds in (-50, 50):
        now = time.time() + seconds
        assert http_peer.signed(keys[PEER], of_peer("skewed", exp=5, now=int(now)), now=now)[0] == 200
        assert http_peer.host.receive("msgbus.skewed")


def test_another_src_is_refused(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    refused(http_peer, lambda: http_peer.signed(keys[PEER], of_peer(src=OTHER)), 403, "with src 1003", "forged or unexpected messages")


def test_a_forged_reply_is_refused(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    """A peer responds to a request that was sent to another host."""
    ret = http_peer.host.send("question", OTHER, try_=1000)
    uid = wait_for(lambda: http_peer.host.redis.hkeys("msgbus.system.backlog"), "the backlog")[0].decode()
    forged = {**request("question", TWIN, uid=uid, src=PEER, ret="msgbus.system.reply"), "dat": "Rk9SR0VE"}
    status, answer = http_peer.signed(keys[PEER], forged, "/zbus-reply")
    assert (status, answer["error"]) == (403, f"host 1002 responded to request {uid}, which it did not receive")
    http_peer.host.relay.wait_logged("forged or unexpected messages from 127.0.0.1: host 1002 responded")
    assert http_peer.host.counters()["answers-forged"] == 1
    right = {**forged, "src": OTHER, "dat": "UklHSFQ="}
    assert http_peer.signed(keys[OTHER], right, "/zbus-reply", twin=OTHER)[0] == 200
    assert data_of(http_peer.host.receive(ret)) == b"RIGHT"
    assert http_peer.signed(keys[OTHER], right, "/zbus-reply", twin=OTHER) == (200, {"status": "repeated"})


def test_unexpected_response_is_rejected(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    unasked = request("x", TWIN, uid="1002.999", src=PEER)
    status, answer = http_peer.signed(keys[PEER], unasked, "/zbus-reply")
    assert (status, answer["error"]) == (404, "no request 1002.999 is waiting for a response here")


def test_application_cannot_respond_for_another_host(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    """A user with access to msgbus.system.reply alone, by a Redis ACL, cannot forge responses."""
    ret = http_peer.host.send("question", OTHER, try_=1000)
    wait_for(lambda: http_peer.host.redis.hkeys("msgbus.system.backlog"), "the backlog")
    uid = http_peer.host.redis.hkeys("msgbus.system.backlog")[0].decode()
    http_peer.host.redis.rpush("msgbus.system.reply", json.dumps(request("question", TWIN, uid=uid, src=OTHER, dat=b"FORGED")))
    http_peer.host.relay.wait_logged("that host 1003 did not send")
    genuine = request("question", TWIN, uid=uid, src=OTHER, dat=b"genuine")
    assert http_peer.signed(keys[OTHER], genuine, "/zbus-reply", twin=OTHER)[0] == 200
    assert data_of(http_peer.host.receive(ret)) == b"genuine"


def test_an_oversized_body_is_refused(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    """Before it is read, with and without Content-Length."""
    body = b"x" * 70_000
    headers = http_peer.headers(keys[PEER], body)
    refused(
        http_peer,
        lambda: http_peer.post("/zbus-remote", body[:0], {**headers, "Content-Length": "70000"}),
        413,
        "70000 bytes",
        "oversized messages",
    )
    with socket.create_connection(http_peer.address, 30) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.sendall(f"POST /zbus-remote HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{head}\r\n".encode())
        chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
        connection.sendall(chunk * 4 + b"1\r\nx\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413 ")


def test_a_slow_body_is_cut_off(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    body = json.dumps(of_peer()).encode()
    with socket.create_connection(http_peer.address, 30) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in http_peer.headers(keys[PEER], body).items())
        connection.sendall(f"POST /zbus-remote HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body[:-1])
        assert connection.recv(65_536).startswith(b"HTTP/1.1 408 ")
    http_peer.host.relay.wait_logged("slow connections from 127.0.0.1: the message did not arrive within 5 s")


def test_a_slow_header_is_cut_off(http_peer: HttpPeer) -> None:
    with socket.create_connection(http_peer.address, 30) as connection:
        connection.sendall(b"POST /zbus-remote HTTP/1.1\r\nHost:")
        assert connection.recv(1) == b""
    http_peer.host.wait_counted("connections-slow")
    assert "no complete request header in time" in http_peer.host.relay.log() or "slow connections" in http_peer.host.relay.log()


def test_a_malformed_header_has_no_traceback(http_peer: HttpPeer) -> None:
    """Otherwise an unauthenticated client could fill the journal."""
    before = len(http_peer.host.relay.log())
    number = 50
    for _ in range(number):
        with socket.create_connection(http_peer.address, 30) as connection:
            connection.sendall(b"POST /zbus-remote HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(65_536), b""))
            assert answer.partition(b" ")[2].startswith(b"400 ")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"].startswith("invalid HTTP request")
    http_peer.host.wait_counted("headers-malformed", number)
    reported = http_peer.host.relay.log()[before:]
    assert "Traceback" not in reported
    assert len(reported) < 1_000
    assert "messages from 127.0.0.1: invalid HTTP request" in reported


def test_disconnecting_peer_is_not_an_internal_error(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    body = json.dumps(of_peer()).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in http_peer.headers(keys[PEER], body).items())
    connection = socket.create_connection(http_peer.address, 30)
    connection.sendall(f"POST /zbus-remote HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body[:-1])
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    http_peer.host.wait_counted("bodies-cut-off")
    assert "internal error" not in http_peer.host.relay.log()


def test_connections_are_bounded(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    many = [socket.create_connection(http_peer.address, 30) for _ in range(12)]
    http_peer.host.wait_counted("connections-evicted", 4)
    http_peer.host.relay.wait_logged("excess connections from 127.0.0.1")
    for connection in many:
        connection.close()
    wait_for(lambda: _is_served(http_peer, keys[PEER]), "room for another")


def _is_served(http_peer: HttpPeer, key: Path) -> bool:
    """Return whether a request is accepted."""
    try:
        return http_peer.signed(key, of_peer("again"))[0] == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"dat": "?"}, 400, "dat: not valid base64"),
        ({"exp": "soon"}, 400, "exp: "),
        ({"exp": 90_000}, 400, "the maximum of 86400 s"),
        ({"uid": ""}, 400, "uid: missing or empty"),
        ({"cmd": ""}, 400, "cmd: missing or empty"),
        ({"now": 1_621_944_461}, 410, "the request expired"),
        ({"ver": 2}, 400, "ver: "),
    ],
)
def test_a_bad_message_has_a_clear_answer(
    http_peer: HttpPeer, keys: dict[int, Path], change: dict[str, Any], status: int, says: str
) -> None:
    refused(http_peer, lambda: http_peer.signed(keys[PEER], of_peer() | change), status, says, "messages from 127.0.0.1")


def test_bad_json_has_a_clear_answer(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    body = b'{"cmd": '
    refused(
        http_peer,
        lambda: http_peer.post("/zbus-remote", body, http_peer.headers(keys[PEER], body)),
        400,
        "not valid JSON",
        "messages from 127.0.0.1",
    )


@pytest.mark.parametrize("command", ["system", "system.local", "system.reply", "system.relay.counters"])
def test_a_command_cannot_reach_the_queues_of_the_bus(http_peer: HttpPeer, keys: dict[int, Path], command: str) -> None:
    """The original would push this to msgbus.system.local: a request in the name of this host."""
    before = http_peer.host.redis.llen("msgbus.system.local")
    assert http_peer.signed(keys[PEER], of_peer(command))[0] == 200
    body = wait_for(lambda: http_peer.host.redis.zrange("msgbus.system.retry:1002", -1, -1), "the answer")[0].decode()
    wait_for(lambda: http_peer.host.redis.hget(f"msgbus.system.relay.message:{body}", "body") is not None, "its body")
    assert b"reserved for the relay" in http_peer.host.redis.hget(f"msgbus.system.relay.message:{body}", "body")
    assert http_peer.host.redis.llen("msgbus.system.local") == before


def test_one_peer_does_not_use_up_the_room_of_another(http_peer: HttpPeer, keys: dict[int, Path]) -> None:
    """A peer with too many unanswered requests is deferred; another peer is served."""
    statuses = [http_peer.signed(keys[PEER], of_peer("flood"))[0] for _ in range(80)]
    assert statuses[-1] == 503
    assert 0 < statuses.count(200) <= 60
    assert http_peer.signed(keys[OTHER], of_peer("calm", src=OTHER), twin=OTHER)[0] == 200
    assert http_peer.host.receive("msgbus.calm")


def test_nothing_else_is_there(http_peer: HttpPeer) -> None:
    connection = http.client.HTTPConnection(*http_peer.address, timeout=30)
    connection.request("GET", "/zbus-remote")
    assert connection.getresponse().status == 405
    connection.close()
    assert http_peer.post("/", b"", {})[0] == 404


def test_without_keys_only_root_and_the_relays_user_are_served(folder: Path, needs_root: None) -> None:
    """Only on loopback, and no other local user, who could forge messages of every host."""
    from tests.support.users import FIRST

    require_redis()
    host = Host(folder, TWIN)
    try:
        address = free_address()
        host.relay.write(f'listen = "{address}"', "")
        host.relay.start()
        assert "remote hosts are not authenticated" in host.relay.log()
        name, _, port = address.rpartition(":")
        body = json.dumps(of_peer("own")).encode()
        assert HttpPeer(host).post("/zbus-remote", body, {})[0] == 200

        def post() -> int:
            connection = http.client.HTTPConnection(name, int(port), timeout=30)
            connection.request("POST", "/zbus-remote", json.dumps(of_peer("forged")).encode())
            return connection.getresponse().status

        assert FIRST.call(post) == 403
        host.relay.wait_logged("only root and the relay's own user")
        assert host.redis.exists("msgbus.forged") == 0
    finally:
        host.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_closed_socket_of_a_user_does_not_count_as_root(folder: Path, needs_root: None, address: str) -> None:
    """The kernel reports uid 0 for a closed socket: the client has gone when the relay reads its request."""
    from tests.support.users import FIRST

    require_redis()
    host = Host(folder, TWIN)
    try:
        _, _, port = free_address().rpartition(":")
        shown = f"[{address}]" if ":" in address else address
        host.relay.write(f'listen = "{shown}:{port}"', "")
        host.relay.start()
        body = json.dumps(of_peer("forged")).encode()
        head = f"POST /zbus-remote HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()

        def forge() -> int:
            with socket.create_connection((address, int(port)), 30) as connection:
                connection.send(head + body, socket.MSG_MORE)
                return int(connection.getsockname()[1])

        assert host.relay.process is not None
        host.relay.process.send_signal(signal.SIGSTOP)
        try:
            sender = FIRST.call(forge)
            # The end of its connection has arrived and is acknowledged: FIN_WAIT2.
            wait_for(lambda: socket_state(sender) == "05", "the kernel to have forgotten whose the socket was")
        finally:
            host.relay.process.send_signal(signal.SIGCONT)
        host.relay.wait_logged("unauthenticated requests from")
        assert host.counters().get("requests-received", 0) == 0
        own = json.dumps(of_peer("own")).encode()
        connection = http.client.HTTPConnection(address, int(port), timeout=30)
        connection.request("POST", "/zbus-remote", own)
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        host.close()


def test_an_open_address_needs_keys(tmp_path: Path) -> None:
    import subprocess
    import sys

    from tests.support.relays import ENV

    file = tmp_path / "relay.toml"
    file.write_text('twin = 1\nlisten = "0.0.0.0:8051"\n')
    command = [sys.executable, "-m", "sbus_services.relay.main", "-C", str(file), "--check"]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=60, cwd=os.sep)
    assert done.returncode == 78
    assert "accepts connections of other hosts without authentication" in done.stderr
    assert done.stderr.count("\n") == 1
