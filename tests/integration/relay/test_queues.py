"""Errors and overload of local programs, and several relays on one Redis: errors are reported and counted, and no message is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.relays import Host, RelayProgram, data_of, request, wait_for

MakeHosts = Callable[..., list[Host]]


def test_a_bad_message_is_answered_or_kept(twins: MakeHosts) -> None:
    """One error per destination; a message without a return queue is kept for inspection."""
    (a,) = twins(1001, settings='body_bytes = "4KiB"\n')
    cases: list[tuple[dict[str, Any], str, list[int]]] = [
        (request("x", 1001, 1002, dat=b"") | {"dat": "?"}, "dat: not valid base64", [1001, 1002]),
        (request("x", 1001) | {"exp": "soon"}, "exp: ", [1001]),
        (request("x"), "dst: missing or empty", [0]),
        (request("", 1001), "cmd: missing", [1001]),
        (request("system.local", 1001), "cmd: reserved for the relay itself", [1001]),
        (request("x", 1001, exp=100_000), "the maximum of 86400 s", [1001]),
        (request("x", 1001, now=1_621_944_461), "expired: ", [1001]),
        (request("x", 1001) | {"dst": "1001"}, "dst: ", [0]),
    ]
    for message, says, sources in cases:
        a.redis.rpush("msgbus.system.local", json.dumps(message))
        answers = [a.receive(message["ret"]) for _ in sources]
        assert [answer["src"] for answer in answers] == sources, message
        assert all(says in answer["err"] and answer["dst"] == [1001] for answer in answers), answers
        assert a.redis.exists(message["ret"]) == 0
    hopeless = [b"", b"{", b"\xff\xfe", b"[]", b"x" * 5_000, json.dumps(request("x", 1001, ret="msgbus.system.local")).encode()]
    for raw in hopeless:
        a.redis.rpush("msgbus.system.local", raw)
    a.wait_counted("messages-malformed", len(cases) + len(hopeless))
    assert a.redis.lrange("msgbus.system.relay.refused", 0, -1) == hopeless
    a.relay.wait_logged("malformed messages in")
    a.assert_empty()


def test_full_queue_is_an_error_for_its_senders(twins: MakeHosts) -> None:
    """Stored messages are kept; further ones fail."""
    a, b = twins(1001, 1002, settings="queue_messages = 5\n")
    rets = [a.send("busy", 1002, dat=str(number).encode()) for number in range(8)]
    wait_for(lambda: sum(a.redis.llen(ret) for ret in rets) == 3, "three errors")
    full = [ret for ret in rets if a.redis.llen(ret)]
    assert all(a.receive(ret)["err"] == "host 1002 has too many unfetched requests for busy" for ret in full)
    for _ in range(5):
        b.reply(b.receive("msgbus.busy"), b"done")
    assert [data_of(a.receive(ret)) for ret in rets if ret not in full] == [b"done"] * 5
    b.relay.wait_logged("queue msgbus.busy full")
    for host in (a, b):
        host.assert_empty()


def test_full_backlog_is_an_error(twins: MakeHosts) -> None:
    (a,) = twins(1001, settings="backlog_messages = 3\n")
    rets = [a.send("x", 1001) for _ in range(5)]
    refused = [a.receive(ret)["err"] for ret in rets[3:]]
    assert refused == ["too many pending requests; try again later"] * 2
    assert a.redis.llen("msgbus.x") == 3


def test_an_answer_that_cannot_be_put_is_counted(twins: MakeHosts) -> None:
    """The return queue of the client is not a list."""
    (a,) = twins(1001)
    a.redis.set("taken", "text")
    a.send("x", 1001, ret="taken")
    a.reply(a.receive("msgbus.x"), b"only for this caller")
    a.wait_counted("answers-undeliverable")
    a.relay.wait_logged("responses for return queue taken")
    assert a.redis.get("taken") == b"text"
    a.assert_empty()


def test_command_whose_queue_is_not_a_list_gets_an_error(twins: MakeHosts) -> None:
    (a,) = twins(1001)
    a.redis.set("msgbus.odd", "text")
    assert "has too many unfetched requests for odd" in a.receive(a.send("odd", 1001))["err"]


def test_client_without_a_return_queue_gets_no_response(twins: MakeHosts) -> None:
    (a,) = twins(1001)
    a.send("x", 1001, ret="")
    a.reply(a.receive("msgbus.x"), b"unused")
    a.wait_counted("answers-unwanted")
    a.assert_empty()


def test_a_second_response_is_discarded(twins: MakeHosts) -> None:
    a, b = twins(1001, 1002)
    for host in (a, b):
        ret = a.send("x", host.twin)
        asked = host.receive("msgbus.x")
        host.reply(asked, b"first")
        host.reply(asked, b"second")
        assert data_of(a.receive(ret)) == b"first"
    b.wait_counted("answers-unasked")
    a.wait_counted("answers-repeated")
    assert a.redis.exists(ret) == 0


def test_response_in_the_name_of_another_host_is_rejected(twins: MakeHosts) -> None:
    """An application did not swap src and dst, or names another host."""
    a, b = twins(1001, 1002)
    ret = a.send("x", 1002)
    asked = b.receive("msgbus.x")
    b.reply(asked, b"forged", src=1003)
    b.relay.wait_logged("src: a response must name this host, 1002: swap src and dst of the request")
    b.reply(asked, b"genuine")
    assert data_of(a.receive(ret)) == b"genuine"
    assert b.redis.llen("msgbus.system.relay.refused") == 1


def test_several_relays_share_one_redis(twins: MakeHosts) -> None:
    """Each message is processed once; when a relay dies, the others recover its messages."""
    a, b = twins(1001, 1002)
    more = RelayProgram(a.folder, 1001, a.server)
    peers = "[[peers]]" + a.relay.file.read_text().partition("[[peers]]")[2]
    more.write('listen = "127.0.0.1:0"\n', peers)
    more.start()
    try:
        rets = [a.send("x", 1002, dat=str(number).encode()) for number in range(60)]
        for number in range(60):
            asked = b.receive("msgbus.x")
            b.reply(asked, data_of(asked))
            if number == 20:
                a.relay.kill()
        # The relay that receives the responses is dead; its successor finds them.
        a.relay.start()
        assert [data_of(a.receive(ret)) for ret in rets] == [str(number).encode() for number in range(60)]
        wait_for(lambda: not a.redis.exists("msgbus.system.backlog", "msgbus.system.reply"), "the end of all")
        assert not any(a.redis.exists(ret) for ret in rets)
        assert b.counters()["requests-delivered"] == 60
    finally:
        more.kill()


def test_it_ends_as_it_should(twins: MakeHosts) -> None:
    (a,) = twins(1001)
    assert a.relay.stop() == 0
    assert a.relay.log().splitlines()[-1] == "sbus-relay: stopped relaying for host 1001"
