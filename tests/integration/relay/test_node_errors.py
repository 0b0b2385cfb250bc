"""Errors of services with the original's Node client: the response is addressed to its own host, and an Error is an empty object."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from sbus_services.relay.message_model import UNKNOWN_ERROR
from tests.support.http_requests import OTHER, PEER, TWIN, HttpPeer
from tests.support.relays import Host, data_of, free_address, peer_table, request, require_redis, shared_key, wait_for

MakeHosts = Callable[..., list[Host]]


def node_error(asked: dict[str, Any], thrown: object) -> str:
    """Return the response that this client pushes when a handler throws: the request, with its own host as src and dst."""
    return json.dumps({**asked, "dat": "", "src": asked["dst"][0], "dst": [asked["dst"][0]], "now": int(time.time()), "err": thrown})


@pytest.mark.parametrize(
    ("thrown", "err"), [("invalid address format", "invalid address format"), ({}, UNKNOWN_ERROR), ({"code": 5}, '{"code": 5}')]
)
def test_the_caller_gets_the_error(twins: MakeHosts, thrown: object, err: str) -> None:
    a, b = twins(TWIN, PEER)
    ret = a.send("wallet", PEER, exp=60)
    asked = b.receive("msgbus.wallet")
    b.redis.lpush(asked["ret"], node_error(asked, thrown))
    answer = a.receive(ret)
    assert (answer["err"], answer["src"], answer["dst"], answer["dat"]) == (err, PEER, [TWIN], "")
    b.wait_counted("answers-redirected")
    a.assert_empty()
    b.assert_empty()


def test_on_one_host_too(twins: MakeHosts) -> None:
    (host,) = twins(TWIN)
    ret = host.send("wallet", TWIN, exp=60)
    asked = host.receive("msgbus.wallet")
    host.redis.lpush(asked["ret"], node_error(asked, {}))
    assert host.receive(ret)["err"] == UNKNOWN_ERROR
    assert "answers-redirected" not in host.counters()


def test_of_two_hosts_with_one_uid_neither_gets_the_others_error(twins: MakeHosts) -> None:
    a, b, c = twins(TWIN, PEER, OTHER)
    rets = [host.send("wallet", PEER, exp=3) for host in (a, c)]
    asked, same = b.receive("msgbus.wallet"), b.receive("msgbus.wallet")
    assert asked["uid"] == same["uid"] == f"{PEER}.1"
    b.redis.lpush(asked["ret"], node_error(asked, "of one of them"))
    b.wait_counted("answers-ambiguous")
    answers = [host.receive(ret) for host, ret in zip((a, c), rets, strict=True)]
    assert all(answer["err"].startswith("expired") for answer in answers)
    assert "answers-redirected" not in b.counters()


def test_local_caller_does_not_get_the_error_of_a_remote_request(twins: MakeHosts) -> None:
    """A remote host chooses uid and command of its request, so it can choose those of a local call."""
    b, c = twins(PEER, OTHER)
    own = b.send("wallet", PEER)
    own_asked = b.receive("msgbus.wallet")
    assert own_asked["uid"] == f"{PEER}.1"
    c.send("wallet", PEER)
    asked = b.receive("msgbus.wallet")
    assert asked["uid"] == f"{PEER}.1"
    b.redis.lpush(asked["ret"], node_error(asked, "ATTACKER TEXT"))
    b.wait_counted("answers-ambiguous")
    b.reply(own_asked, b"genuine")
    assert data_of(b.receive(own)) == b"genuine"
    assert b.counters()["answers-ambiguous"] == 1


@pytest.mark.parametrize("is_local", [False, True])
def test_late_error_does_not_go_to_another_host_with_its_uid(twins: MakeHosts, is_local: bool) -> None:
    a, b, c = twins(TWIN, PEER, OTHER)
    victim = b if is_local else a
    unserved = c.send("unused.queue.name", PEER, exp=600)
    b.wait_counted("requests-delivered")
    ret = victim.send("wallet", PEER, exp=5)
    asked = b.receive("msgbus.wallet")
    assert asked["uid"] == f"{PEER}.1"
    assert victim.receive(ret)["err"].startswith("expired")
    # The called host allows one more second.
    opened = f"msgbus.system.relay.open:{victim.twin}"
    wait_for(lambda: (b.redis.zscore(opened, asked["uid"]) or 0) < b.redis.time()[0], "the request to expire at the callee too")
    b.redis.lpush(asked["ret"], node_error(asked, "private words"))
    b.wait_counted("answers-ambiguous")
    assert "answers-redirected" not in b.counters()
    assert c.redis.llen(unserved) == 0


def test_a_result_that_is_misaddressed_stays_where_it_is(twins: MakeHosts) -> None:
    """Only errors are redirected: other data could belong to another host that used the same uid before."""
    a, b = twins(TWIN, PEER)
    ret = a.send("wallet", PEER)
    asked = b.receive("msgbus.wallet")
    b.redis.lpush(asked["ret"], json.dumps({**json.loads(node_error(asked, "")), "dat": "c2VjcmV0"}))
    b.wait_counted("answers-unasked")
    b.reply(asked, b"genuine")
    assert data_of(a.receive(ret)) == b"genuine"
    assert b.counters()["answers-unasked"] == 1


def test_misaddressed_error_is_accepted_only_from_the_called_host(folder: Any) -> None:
    """A relay of another implementation may forward the message unchanged."""
    require_redis()
    keys = {twin: shared_key(folder, str(twin)) for twin in (PEER, OTHER)}
    host = Host(folder, TWIN)
    try:
        host.relay.write(f'listen = "{free_address()}"', "".join(peer_table(twin, free_address(), key) for twin, key in keys.items()))
        host.relay.start()
        http_peer = HttpPeer(host)
        ret = host.send("wallet", OTHER, try_=1000)
        uid = wait_for(lambda: host.redis.hkeys("msgbus.system.backlog"), "the backlog")[0].decode()
        asked = request("wallet", OTHER, uid=uid, src=TWIN, ret="msgbus.system.reply")
        forged = json.loads(node_error({**asked, "dst": [PEER]}, "forged"))
        assert http_peer.signed(keys[PEER], forged, "/zbus-reply")[0] == 403
        named = {**forged, "src": OTHER, "dst": [OTHER]}
        assert http_peer.signed(keys[PEER], named, "/zbus-reply")[0] == 403
        assert "answers-redirected" not in host.counters()
        right = json.loads(node_error(asked, "no such wallet"))
        assert http_peer.signed(keys[OTHER], right, "/zbus-reply", twin=OTHER) == (200, {"status": "accepted"})
        assert host.receive(ret)["err"] == "no such wallet"
        assert host.counters()["answers-redirected"] == 1
        elsewhere = {**right, "uid": "1003.99"}
        assert http_peer.signed(keys[OTHER], elsewhere, "/zbus-reply", twin=OTHER)[0] == 404
    finally:
        host.close()
