"""The founding document, paragraph by paragraph, with two relays and real Redis; each test names its paragraph."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable

from tests.support.relays import Host, answer_to, data_of, request

MakeHosts = Callable[..., list[Host]]

COMMAND = "wallet.stellar.balance.tft"


def test_object_schema(twins: MakeHosts) -> None:
    """Object Schema: every member, its type and its default; the relay fills in omitted members."""
    (host,) = twins(1001)
    ret = str(uuid.uuid4())
    host.redis.rpush("msgbus.system.local", f'{{"cmd": "x", "dst": [1001], "ret": "{ret}"}}')
    asked = host.receive("msgbus.x")
    assert list(asked) == ["ver", "uid", "cmd", "exp", "try", "dat", "src", "dst", "ret", "shm", "now", "err", "ref"]
    now = asked.pop("now")
    assert asked == {
        "ver": 1,
        "uid": "1001.1",
        "cmd": "x",
        "exp": 0,
        "try": 0,
        "dat": "",
        "src": 1001,
        "dst": [1001],
        "ret": "msgbus.system.reply",
        "shm": "",
        "err": "",
        "ref": "1001.1",  # not of the founding document: services of rmb-peer respond with it
    }
    assert abs(now - time.time()) < 60


def test_sending_a_request(twins: MakeHosts) -> None:
    """Sending a request: pushed to msgbus.system.local; one response per destination on ret."""
    a, _, _ = hosts = twins(1001, 1002, 1003)
    ret = a.send(COMMAND, 1001, 1002, 1003, dat=b"who?")
    for host in hosts:
        asked = host.receive(f"msgbus.{COMMAND}")
        assert data_of(asked) == b"who?"
        host.reply(asked, str(host.twin).encode())
    answers = [a.receive(ret) for _ in hosts]
    assert {(answer["src"], data_of(answer)) for answer in answers} == {(1001, b"1001"), (1002, b"1002"), (1003, b"1003")}
    assert all(answer["dst"] == [1001] and answer["ret"] == ret and answer["err"] == "" for answer in answers)


def test_lpush_does_as_well(twins: MakeHosts) -> None:
    """Sending a request: the original's clients in other languages push from the left."""
    a, b = twins(1001, 1002)
    made = request("x", 1002)
    a.redis.lpush("msgbus.system.local", json.dumps(made))
    b.reply(b.receive("msgbus.x"), b"ok")
    assert data_of(a.receive(made["ret"])) == b"ok"


def test_processing_a_request(twins: MakeHosts) -> None:
    """Processing a request: one destination each, src, and a uid that counts per destination; a copy in the backlog."""
    a, b = twins(1001, 1002)
    rets = [a.send(COMMAND, 1002, dat=b"1"), a.send(COMMAND, 1002, 1001, dat=b"2"), a.send(COMMAND, 1002, dat=b"3")]
    asked = [b.receive(f"msgbus.{COMMAND}") for _ in range(3)]
    assert sorted(each["uid"] for each in asked) == ["1002.1", "1002.2", "1002.3"]
    assert [(each["src"], each["dst"], each["ret"]) for each in asked] == [(1001, [1002], "msgbus.system.reply")] * 3
    own = a.receive(f"msgbus.{COMMAND}")
    assert own["uid"] == "1001.1"
    backlog = {uid.decode(): json.loads(body) for uid, body in a.redis.hgetall("msgbus.system.backlog").items()}
    assert {uid: body["ret"] for uid, body in backlog.items()} == {
        "1002.1": rets[0],
        "1002.2": rets[1],
        "1001.1": rets[1],
        "1002.3": rets[2],
    }


def test_destination_not_found(twins: MakeHosts) -> None:
    """Processing a request: an error has a text in err, and the response is pushed to ret."""
    (a,) = twins(1001)
    ret = a.send(COMMAND, 4711)
    answer = a.receive(ret)
    assert (answer["err"], answer["src"], answer["dst"], answer["ret"]) == ("destination not found", 4711, [1001], ret)
    a.assert_empty()


def test_processing_a_request_on_the_remote_side(twins: MakeHosts) -> None:
    """Processing a request on the remote side: forwarded unchanged to msgbus.$cmd."""
    a, b = twins(1001, 1002)
    ret = a.send("first", 1002, dat=b"\0binary\xff")
    a.send("second", 1002)
    assert b.receive("msgbus.second")["cmd"] == "second"
    asked = b.receive("msgbus.first")
    assert data_of(asked) == b"\0binary\xff"
    b.reply(asked, b"done")
    assert data_of(a.receive(ret)) == b"done"


def test_processing_a_reply(twins: MakeHosts) -> None:
    """Processing a reply: src and dst are swapped, dat and now are the application's; the original ret is restored."""
    a, b = twins(1001, 1002)
    ret = a.send(COMMAND, 1002, dat=b"GC3")
    asked = b.receive(f"msgbus.{COMMAND}")
    b.reply(asked, b"18024884.1393419", now=1621944462)
    answer = a.receive(ret)
    expected = {**answer_to(asked, b"18024884.1393419"), "ret": ret, "now": 1621944462}
    del expected["ref"]  # the client gave the request none
    assert answer == expected
    for host in (a, b):
        host.assert_empty()


def test_an_application_may_answer_with_an_error(twins: MakeHosts) -> None:
    """Object Schema: err may be set; a response with it is a response."""
    a, b = twins(1001, 1002)
    ret = a.send(COMMAND, 1002)
    b.reply(b.receive(f"msgbus.{COMMAND}"), err="no such wallet")
    assert a.receive(ret)["err"] == "no such wallet"
    assert a.counters()["requests-failed"] == 1


def test_same_host_as_source_and_destination(twins: MakeHosts) -> None:
    """Note: both hosts can be the same, for communication between processes."""
    (a,) = twins(1001)
    ret = a.send("x", 1001, 1001, dat=b"me")
    asked = [a.receive("msgbus.x"), a.receive("msgbus.x")]
    assert {each["uid"] for each in asked} == {"1001.1", "1001.2"}
    for each in asked:
        a.reply(each, each["uid"].encode())
    assert {data_of(a.receive(ret)) for _ in asked} == {b"1001.1", b"1001.2"}
    a.assert_empty()


def test_expiry_is_answered(twins: MakeHosts) -> None:
    """exp: the request expires that many seconds after now, and its client gets an error; a later response is dropped."""
    a, b = twins(1001, 1002)
    ret = a.send("x", 1002, exp=5)
    asked = b.receive("msgbus.x")
    answer = a.receive(ret)
    assert (answer["err"], answer["src"]) == ("expired: no response within 5 s", 1002)
    b.reply(asked, b"late")
    b.wait_counted("answers-sent")
    assert a.counters()["answers-repeated"] == 1
    assert a.redis.llen(ret) == 0
    a.assert_empty()


def test_an_expiry_of_zero_is_an_hour(twins: MakeHosts) -> None:
    """exp: the meaning of 0."""
    a, _ = twins(1001, 1002)
    a.send("x", 1002, exp=0, now=int(time.time()) - 3_500)
    old = a.send("x", 1002, exp=0, now=int(time.time()) - 3_700)
    assert a.receive(old)["err"] == "expired: the request is older than its exp of 3600 s"
    ((uid, deadline),) = a.redis.zrange("msgbus.system.relay.deadlines", 0, -1, withscores=True)
    assert uid == b"1002.1"
    assert 60 < deadline - time.time() < 120


def test_tries_are_counted_down(twins: MakeHosts) -> None:
    """try: the number of retries for an unreachable host, then an error; a delivered message has the retries left."""
    a, b = twins(1001, 1002)
    b.relay.kill()
    ret = a.send("x", 1002, try_=2)
    answer = a.receive(ret)
    tries = 3 + a.counters().get("tries-hastened", 0)  # a retry because of a network change is not counted
    assert answer["err"].startswith(f"destination not reached after {tries} attempts: ")
    assert a.counters()["tries-failed"] == tries
    assert answer["try"] == 0
    ret = a.send("x", 1002, try_=100)
    a.wait_counted("tries-failed", tries + 2)
    b.relay.start()
    asked = b.receive("msgbus.x")
    assert asked["try"] < 99 + a.counters().get("tries-hastened", 0)
    b.reply(asked, b"at last")
    assert data_of(a.receive(ret)) == b"at last"
    a.assert_empty()
