"""Calls between hosts that start or end on a bus: two hosts with a Redis, a relay and a bus each."""

from __future__ import annotations

import json
import os
import signal
import threading
from functools import partial
from pathlib import Path

import pytest

from sbus import Bus, CallTimeout, NoRecipient, PeerDisconnected, RemoteError, Twins
from tests.support.bus_hosts import FIRST, SECOND, BusHost, MakeBusHosts, await_word, describe, echo, fail, hang
from tests.support.daemons import StartDaemon
from tests.support.relays import RelayProgram, data_of, free_address, wait_for
from tests.support.service_processes import running_service


def goes_on(host_with_bus: BusHost) -> bool:
    """Return whether the bus of *host_with_bus* has been restarted with its connections."""
    return "connections after a planned restart" in host_with_bus.daemon.stderr


def test_from_a_bus_to_a_service_of_another_hosts_bus_and_back(bus_hosts: MakeBusHosts) -> None:
    a, b = bus_hosts()
    with running_service(b.path, twins=Twins(), echo=echo, who=describe, fail=fail), a.bus() as bus:
        answer = bus.call("echo", b"\0x", twin=SECOND)
        assert (answer, answer.source) == (b"\0x", SECOND)
        source, uid, gid, pid, key = json.loads(bus.call("who", twin=SECOND))
        assert (source, uid, gid, pid) == (FIRST, -1, -1, -1)
        assert key.startswith(f"!/twin/{FIRST}/!/cred/")
        with pytest.raises(RemoteError, match="'fail' failed: no account 7"):
            bus.call("fail", "7", twin=SECOND)
        a.host.assert_empty()
        b.host.assert_empty()
    assert b.host.counters()["requests-engaged"] == 3
    assert a.host.counters()["requests-answered"] == 2
    assert a.host.counters()["requests-failed"] == 1


def test_from_a_bus_to_an_application_of_another_hosts_redis(bus_hosts: MakeBusHosts) -> None:
    """If no bus service accepts remote hosts, though one accepts local users."""
    a, b = bus_hosts()
    answers: list[bytes] = []
    with running_service(b.path, echo=echo), a.bus() as bus, b.bus() as listener, listener.subscribe(""):
        calling = threading.Thread(target=lambda: answers.append(bus.call("echo", b"x", twin=SECOND)))
        calling.start()
        asked = b.host.receive("msgbus.echo")
        assert (asked["src"], asked["dst"], data_of(asked)) == (FIRST, [SECOND], b"x")
        b.host.reply(asked, b"from Redis")
        calling.join(60)
    assert answers == [b"from Redis"]


def test_from_a_client_of_redis_to_a_service_of_another_hosts_bus(bus_hosts: MakeBusHosts) -> None:
    a, b = bus_hosts()
    with running_service(b.path, twins=Twins((FIRST,)), echo=echo):
        answer = a.host.receive(a.host.send("echo", SECOND, dat=b"y"))
    assert (answer["src"], answer["dst"], data_of(answer), answer["err"]) == (SECOND, [FIRST], b"y", "")


def test_a_host_calls_itself(bus_hosts: MakeBusHosts) -> None:
    a, _ = bus_hosts()
    with running_service(a.path, twins=Twins(), who=describe), a.bus() as bus:
        answer = bus.call("who", twin=FIRST)
        assert (json.loads(answer)[:2], answer.source) == ([FIRST, -1], FIRST)


def test_a_service_says_which_hosts_it_serves(bus_hosts: MakeBusHosts) -> None:
    a, b = bus_hosts()
    with (
        running_service(b.path, twins=Twins((1003,)), echo=echo),
        a.bus() as bus,
        pytest.raises(RemoteError, match="twin 1001 may not call echo"),
    ):
        bus.call("echo", twin=SECOND)


def test_calls_that_fail_immediately(bus_hosts: MakeBusHosts) -> None:
    a, b = bus_hosts()
    with a.bus() as bus, b.bus() as other:
        with pytest.raises(RemoteError, match="destination not found"):
            bus.call("echo", twin=4711)
        with pytest.raises(RemoteError, match="cmd: reserved for the relay itself"):
            bus.call("system.local", twin=SECOND)
        with pytest.raises(RemoteError, match="exceeds the maximum of 86400 s"):
            bus.call("echo", twin=SECOND, timeout=100_000.0)
        a.host.relay.stop()
        with pytest.raises(NoRecipient):
            bus.call("echo", twin=SECOND)
        b.host.relay.kill()
        with pytest.raises(NoRecipient):
            other.call("echo", twin=FIRST)


def test_caller_that_does_not_wait_leaves_nothing_behind(bus_hosts: MakeBusHosts) -> None:
    """The call expires on both hosts: no caller waits for the response, and nothing remains."""
    a, b = bus_hosts()
    with a.bus() as bus:
        with pytest.raises(CallTimeout):
            bus.call("echo", b"x", twin=SECOND, timeout=3.0)
        a.host.wait_counted("requests-expired")
        # On a slow machine it may have expired before it arrived.
        if raw := b.host.redis.lpop("msgbus.echo"):
            asked = json.loads(raw)
            assert asked["exp"] == 3
            b.host.reply(asked, b"late")
            a.host.wait_counted("answers-repeated")
    a.host.assert_empty()


def test_a_response_reaches_a_relay_whose_lease_has_expired(bus_hosts: MakeBusHosts) -> None:
    """Because its process was paused. No other relay has taken over its messages."""
    a, b = bus_hosts()
    (relay,) = a.host.redis.smembers("msgbus.system.relay.relays")
    responses: list[bytes] = []

    def call() -> None:
        with a.bus() as bus:
            responses.append(bus.call("slow", twin=SECOND))

    calling = threading.Thread(target=call)
    calling.start()
    b.host.reply(b.host.receive("msgbus.slow"), b"done")
    while calling.is_alive():
        a.host.redis.delete(b"msgbus.system.relay.lease:" + relay)
    calling.join()
    assert responses == [b"done"]
    assert "answers-orphaned" not in a.host.counters()


def test_the_relay_is_killed_while_a_caller_waits(bus_hosts: MakeBusHosts) -> None:
    a, b = bus_hosts()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            with a.bus() as bus:
                bus.call("slow", twin=SECOND, timeout=600.0)
        except PeerDisconnected as error:
            errors.append(error)

    calling = threading.Thread(target=call)
    calling.start()
    asked = b.host.receive("msgbus.slow")
    a.host.relay.kill()
    calling.join(60)
    assert len(errors) == 1
    a.host.relay.start()
    b.host.reply(asked, b"too late")
    a.host.wait_counted("answers-orphaned")
    a.host.assert_empty()


def test_a_service_is_killed_while_another_host_waits(bus_hosts: MakeBusHosts) -> None:
    a, b = bus_hosts()
    with running_service(b.path, twins=Twins(), slow=partial(await_word, b.path)) as service, b.bus() as control:
        ret = a.host.send("slow", SECOND)
        wait_for(lambda: control.members("word"), "the service to run it")
        service.kill()
        answer = a.host.receive(ret)
    assert answer["err"] == "the service for slow on host 1002 ended before it responded; it may have run the request"


def test_a_relay_is_killed_while_a_service_has_a_request(bus_hosts: MakeBusHosts) -> None:
    """The request is neither lost nor run again: its caller gets an error."""
    a, b = bus_hosts()
    with running_service(b.path, twins=Twins(), slow=hang):
        ret = a.host.send("slow", SECOND)
        b.host.wait_counted("requests-engaged")
        b.host.relay.kill()
        b.host.relay.start()
        answer = a.host.receive(ret)
        assert answer["err"] == "the relay of host 1002 ended while a service there handled the request for slow; it may have been run"
        assert answer["src"] == SECOND
    assert b.host.counters()["requests-engaged"] == 1
    wait_for(lambda: not b.host.redis.exists("msgbus.system.relay.abandoned"), "the list to be empty")
    assert a.host.redis.llen(ret) == 0


def test_a_host_that_is_away_is_tried_again(bus_hosts: MakeBusHosts) -> None:
    a, b = bus_hosts()
    b.host.relay.stop()
    with running_service(b.path, twins=Twins(), echo=echo), a.bus() as bus:
        with pytest.raises(RemoteError, match=r"destination not reached after \d+ attempts"):
            bus.call("echo", b"x", twin=SECOND, tries=0)
        answers: list[bytes] = []
        calling = threading.Thread(target=lambda: answers.append(bus.call("echo", b"x", twin=SECOND, tries=1_000, timeout=120.0)))
        calling.start()
        failed = a.host.counters()["tries-failed"]
        a.host.wait_counted("tries-failed", failed + 2)
        b.host.relay.start()
        calling.join(120)
    assert answers == [b"x"]


def test_the_bus_is_killed_and_another_comes(bus_hosts: MakeBusHosts, daemon: StartDaemon, folder: Path) -> None:
    a, b = bus_hosts()
    b.daemon.process.kill()
    b.daemon.expected_status = -signal.SIGKILL
    b.host.relay.wait_logged(f"/bus-{SECOND} unavailable: ")
    # Meanwhile requests go to Redis.
    ret = a.host.send("echo", SECOND, dat=b"x")
    b.host.reply(b.host.receive("msgbus.echo"), b"by Redis")
    assert data_of(a.host.receive(ret)) == b"by Redis"
    another = daemon()
    link = folder / f"bus-{SECOND}"
    link.unlink()
    link.symlink_to(another.path)
    wait_for(lambda: b.host.relay.log().count(": joined bus") == 2, "the relay to be joined again")
    with running_service(another.path, twins=Twins(), echo=echo), a.bus() as bus:
        assert bus.call("echo", b"y", twin=SECOND) == b"y"


def test_a_hanging_bus_does_not_block_messages_for_redis(bus_hosts: MakeBusHosts) -> None:
    a, b = bus_hosts()
    os.kill(b.daemon.pid, signal.SIGSTOP)
    try:
        rets = [a.host.send("x", SECOND) for _ in range(3)]
        for _ in rets:
            b.host.reply(b.host.receive("msgbus.x"), b"ok")
        assert [data_of(a.host.receive(ret)) for ret in rets] == [b"ok"] * 3
        b.host.relay.wait_logged("no response for 5 s")
    finally:
        os.kill(b.daemon.pid, signal.SIGCONT)
    wait_for(lambda: b.host.relay.log().count(": joined bus") == 2, "the relay to be joined again")


def test_restart_of_the_bus_ends_no_call(bus_hosts: MakeBusHosts) -> None:
    """Neither the call of a local caller, nor the request of a local service."""
    a, b = bus_hosts()
    answers: list[bytes] = []
    calling = threading.Thread(target=lambda: answers.append(caller.call("wait", b"x", twin=SECOND)))
    with b.bus() as control, running_service(b.path, twins=Twins(), wait=partial(await_word, b.path)), a.bus() as caller:
        calling.start()
        wait_for(lambda: control.members("word"), "the service to run it")
        for host_with_bus in (a, b):
            os.kill(host_with_bus.daemon.pid, signal.SIGUSR2)
            wait_for(partial(goes_on, host_with_bus), "the bus to be there again")
        control.publish("word", "done")
        calling.join(60)
    assert answers == [b"done"]
    for host_with_bus in (a, b):
        assert host_with_bus.host.relay.log().count("joined bus") == 1


def test_only_one_of_two_relays_on_a_bus_handles_calls(bus_hosts: MakeBusHosts) -> None:
    """Otherwise each call would be made twice. If one relay ends, the other takes over."""
    a, b = bus_hosts()
    relay = a.host.relay
    other = RelayProgram(a.host.folder, FIRST, a.host.server)
    # The same host with the same Redis, at another address.
    text = relay.file.read_text().replace(f'listen = "{relay.listen}"', f'listen = "{free_address()}"')
    other.file.write_text(text)
    try:
        other.start()
        other.wait_logged("another relay serves bus")
        with running_service(b.path, twins=Twins(), echo=echo), a.bus() as bus:
            assert bus.call("echo", b"x", twin=SECOND) == b"x"
            assert b.host.counters()["requests-engaged"] == 1
            relay.kill()
            other.wait_logged("joined bus")
            # The response goes to the first relay, but belongs to the call of the second.
            relay.start()
            relay.wait_logged("another relay serves bus")
            assert bus.call("echo", b"y", twin=SECOND) == b"y"
            assert b.host.counters()["requests-engaged"] == 2
    finally:
        other.kill()


def test_an_answer_that_no_packet_of_the_bus_holds(bus_hosts: MakeBusHosts) -> None:
    a, b = bus_hosts()
    with a.bus() as bus:
        errors: list[str] = []

        def call() -> None:
            try:
                bus.call("big", twin=SECOND)
            except RemoteError as error:
                errors.append(error.words)

        calling = threading.Thread(target=call)
        calling.start()
        b.host.reply(b.host.receive("msgbus.big"), bytes(400_000))
        calling.join(60)
    assert [words.startswith("response too long: 400000 bytes do not fit into a packet") for words in errors] == [True]


def test_concurrent_calls_all_get_a_response(bus_hosts: MakeBusHosts) -> None:
    """Many concurrent calls in both directions, to a bus service on one host and to Redis on the other."""
    a, b = bus_hosts()

    def many(bus: Bus, twin: int, seen: list[bytes]) -> None:
        for number in range(40):
            seen.append(bus.call("echo", str(number), twin=twin))

    with (
        running_service(b.path, twins=Twins(), echo=echo),
        running_service(a.path, twins=Twins(), echo=echo),
        a.bus() as one,
        b.bus() as two,
    ):
        seen: dict[int, list[bytes]] = {FIRST: [], SECOND: []}
        threads = [
            threading.Thread(target=partial(many, one, SECOND, seen[SECOND])),
            threading.Thread(target=partial(many, two, FIRST, seen[FIRST])),
        ]
        for thread in threads:
            thread.start()
        rets = [a.host.send("echo", SECOND, dat=b"%d" % number) for number in range(40)]
        assert [data_of(a.host.receive(ret)) for ret in rets] == [b"%d" % number for number in range(40)]
        for thread in threads:
            thread.join(120)
    assert seen[FIRST] == seen[SECOND] == [b"%d" % number for number in range(40)]
    a.host.assert_empty()
    b.host.assert_empty()
