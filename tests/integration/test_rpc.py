"""Calls on a real bus, between real users; and what the message queue's founding document says of them, sentence by sentence."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter

import pytest

from sbus import (
    Allow,
    AsyncBus,
    Bus,
    CallTimeout,
    Change,
    ErrorCode,
    Message,
    NoRecipient,
    PeerDisconnected,
    PresenceEvent,
    RemoteError,
    RemoteRefusal,
    Request,
    TimedOut,
)
from sbus.protocol.envelope import Envelope, parse_envelope
from tests.support.daemons import Daemon
from tests.support.service_processes import ServiceProcess, running_service
from tests.support.users import User

WAIT_SECONDS = 30.0


SHARES_BUS = True


def echo(request: Request) -> bytes:
    return request.data


def caller_of(request: Request) -> str:
    caller = request.caller
    return f"{caller.uid} {caller.gid} {caller.pid}"


def never(request: Request) -> bytes:
    signal.pause()
    return b""


# "Feedback from the IPC system"


def test_an_undeliverable_message_is_reported_on_request(bus: Daemon) -> None:
    """'If the client requests it … and the set of recipients specified is empty … an answer message is sent.'"""
    with Bus.connect(bus.path) as one, Bus.connect(bus.path) as two:
        assert one.publish("empty/group", receipt=True) == 0
        assert one.publish("!/conn/999999/x", receipt=True) == 0
        with two.subscribe("group"):
            assert one.publish("group", receipt=True) == 1
        two.ping()
        assert one.publish("group", receipt=True) == 0
        one.publish("group")
        one.ping()


def test_connections_and_subscriptions_are_notified(bus: Daemon) -> None:
    """'Client with given lname connected … disconnected … subscribed to given group … unsubscribed from given group.'"""
    with Bus.connect(bus.path) as watcher, watcher.presence() as presence:
        with Bus.connect(bus.path) as other:
            number = int(other.address.split("/")[2])
            other.subscribe("some/group").close()
            other.ping()
        seen: list[tuple[Change, str | None]] = []
        while not seen or seen[-1][0] is not Change.DISCONNECT:
            event = presence.receive(WAIT_SECONDS)
            assert isinstance(event, PresenceEvent)
            if event.peer.connection == number:
                seen.append((event.change, event.pattern))
                assert (event.peer.uid, event.peer.pid) == (os.getuid(), os.getpid())
        assert seen == [
            (Change.CONNECT, None),
            (Change.SUBSCRIBE, "some/group"),
            (Change.UNSUBSCRIBE, "some/group"),
            (Change.DISCONNECT, None),
        ]


def test_the_members_of_a_group_can_be_asked_for(bus: Daemon) -> None:
    """'The MSGQ provides a command to list members of given group.'"""
    with Bus.connect(bus.path) as one, Bus.connect(bus.path) as two, one.subscribe("group"), two.subscribe("gr*"):
        assert [peer.address for peer in one.members("group")] == [one.address, two.address]
        assert one.members("other") == ()


# "Addressing"


def test_a_message_to_an_address_reaches_that_client_alone(bus: Daemon) -> None:
    """'Each connected client has an unique address. A message addressed to that addressed is sent only to the one client.'"""
    with Bus.connect(bus.path) as one, Bus.connect(bus.path) as two, Bus.connect(bus.path) as spy:
        assert one.address != two.address
        with one.subscribe(one.address) as mine, two.subscribe("") as everything, spy.subscribe("", "!*/"):
            two.publish(one.address + "x", "for you")
            assert mine.receive(WAIT_SECONDS) == Message(one.address.encode() + b"x", b"for you")
            two.ping()
            with pytest.raises(TimedOut):
                everything.receive(0)
            with pytest.raises(RemoteRefusal) as caught:
                spy.subscribe(one.address)
            assert caught.value.code is ErrorCode.EPERM


# "Event notifications"


def test_first_subscribe_then_load_the_state(bus: Daemon) -> None:
    """'It is important to first subscribe to the group and then load the initial state … not the other way around.'"""
    state = ["old"]
    with Bus.connect(bus.path) as reader, Bus.connect(bus.path) as writer, reader.subscribe("state/changed") as changes:
        # A change between the two is in what is loaded, and received as well: it may come twice, and is not lost.
        state[0] = "new"
        assert writer.publish("state/changed", receipt=True) == 1
        assert state == ["new"]
        assert changes.receive(WAIT_SECONDS) == Message(b"state/changed", b"")


def test_an_originator_needs_no_feedback(bus: Daemon) -> None:
    """'It is legal to send to an empty group'; 'it is sent to the group, without requiring an answer.'"""
    with Bus.connect(bus.path) as originator:
        before = originator.statistics.received
        originator.publish("zone/changed", "example.org")
        originator.ping()
        assert originator.statistics.received == before + 1


# "One-to-one RPC call"


def test_a_call_between_two_users_and_the_verified_caller(bus: Daemon, first_user: User, second_user: User) -> None:
    """'The other side processes the command and sends a result or error back.' The service knows who calls, and the caller who answers."""

    def call() -> tuple[bytes, int, int]:
        with Bus.connect(bus.path) as client:
            answer = client.call("who", timeout=WAIT_SECONDS)
            assert answer.callee is not None
            return bytes(answer), answer.callee.uid, os.getpid()

    with running_service(bus.path, first_user, who=caller_of):
        said, callee, pid = second_user.call(call)
    assert said == b"%d %d %d" % (second_user.uid, second_user.gid, pid)
    assert callee == first_user.uid


def test_a_call_without_a_recipient_fails_immediately(bus: Daemon) -> None:
    """'If the recipient does not exist, the msgq sends an error right away.'"""
    with Bus.connect(bus.path) as client, pytest.raises(NoRecipient):
        client.call("absent", timeout=None)


def test_a_module_that_does_not_answer(bus: Daemon) -> None:
    """'The receiving module reads the command, but does not provide an answer … There should be some (long) timeout for this situation.'"""
    with running_service(bus.path, slow=never), Bus.connect(bus.path) as caller:
        for timeout in (0.2, 2.0, 20.0):  # a slow bus has not yet said who has the request
            with pytest.raises(CallTimeout) as caught:
                caller.call("slow", timeout=timeout)
            if caught.value.callees:
                break
    assert len(caught.value.callees) == 1


def test_a_module_that_crashes_handling_the_command(bus: Daemon, first_user: User, second_user: User) -> None:
    """'If the recipient disconnects, the sender knows it should not expect the answer any more.' At once: no time-out is set."""

    def crash(request: Request) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    def call() -> type[BaseException]:
        with Bus.connect(bus.path) as client, pytest.raises(PeerDisconnected) as caught:
            client.call("crash", timeout=None)
        return caught.type

    with running_service(bus.path, first_user, crash=crash):
        assert second_user.call(call) is PeerDisconnected


def test_a_service_that_unsubscribes_still_answers(bus: Daemon) -> None:
    """'The sender listens for disconnect or unsubscription notifications': here who unsubscribes owes the answers that it has taken."""

    async def main() -> None:
        async with AsyncBus.connect(bus.path) as service, AsyncBus.connect(bus.path) as caller:
            begun, ready = asyncio.Event(), asyncio.Event()

            @service.service("slow")
            async def slow(request: Request) -> bytes:
                begun.set()
                await asyncio.Event().wait()
                return b""

            task = asyncio.ensure_future(service.serve(ready=ready.set))
            await ready.wait()
            call = asyncio.ensure_future(caller.call("slow", timeout=None))
            await begun.wait()
            task.cancel()
            with pytest.raises(RemoteError, match="the service stopped"):
                await call
            with pytest.raises(NoRecipient):
                await caller.call("slow", timeout=None)

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


def test_an_asynchronous_waiting_for_the_answer(bus: Daemon) -> None:
    """'An asynchronous waiting for the answer is preferred.'"""

    async def main() -> list[bytes]:
        async with AsyncBus.connect(bus.path) as caller:
            return list(await asyncio.gather(*(caller.call("echo", f"{number}", timeout=WAIT_SECONDS) for number in range(50))))

    with running_service(bus.path, echo=echo):
        assert asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS)) == [b"%d" % number for number in range(50)]


# "One-to-many RPC call"


def test_each_member_is_called_and_tracked_separately(bus: Daemon) -> None:
    """'… requesting the members of the group … and then sending a one-to-one RPC call to each of them, tracking them separately.'"""

    def fail(request: Request) -> bytes:
        raise LookupError("not today")

    def crash(request: Request) -> bytes:
        os._exit(1)

    path = bus.path
    with (
        running_service(path, work=caller_of),
        running_service(path, work=fail),
        running_service(path, work=crash),
        Bus.connect(path) as caller,
    ):
        with caller.subscribe(""):
            outcomes = list(caller.call_all("work", timeout=WAIT_SECONDS))
        kinds = sorted(type(outcome.error).__name__ for outcome in outcomes)
    assert kinds == ["NoneType", "PeerDisconnected", "RemoteError"]


def test_a_member_that_disconnected_after_the_list_is_undeliverable(bus: Daemon) -> None:
    """'If a client gets disconnected, the sender gets an undeliverable error back from msgq.'"""
    with Bus.connect(bus.path) as caller:
        with running_service(bus.path, work=echo):
            (member,) = caller.members("rpc/work")
            assert caller.call("work", "x", member=member) == b"x"
        with caller.presence() as presence:
            while caller.members("rpc/work"):
                presence.receive(WAIT_SECONDS)
        with pytest.raises(NoRecipient):
            caller.call("work", "x", member=member, timeout=None)


def test_a_member_that_joins_after_the_list_is_not_called(bus: Daemon) -> None:
    """'If anything else happens … it must explicitly synchronise to the state anyway, because we could have sent the commands before.'"""
    with running_service(bus.path, work=echo), Bus.connect(bus.path) as caller:
        outcomes = caller.call_all("work", "x", timeout=WAIT_SECONDS)
        first = next(outcomes)
        with running_service(bus.path, work=echo):
            assert list(outcomes) == []
            assert len(list(caller.call_all("work", "x", timeout=WAIT_SECONDS))) == 2
    assert first.result() == b"x"


def test_each_call_is_run_by_one_of_several_services(bus: Daemon) -> None:
    with contextlib.ExitStack() as stack:
        pids = {stack.enter_context(running_service(bus.path, work=caller_of)).pid for _ in range(3)}
        caller = stack.enter_context(Bus.connect(bus.path))
        callees = [caller.call("work", timeout=WAIT_SECONDS).callee for _ in range(30)]
        assert Counter(callee.pid for callee in callees if callee) == dict.fromkeys(pids, 10)
        caller.ping()
        assert caller.statistics.stray_answers == 0
        # Each can be called alone, too.
        assert {outcome.member.pid for outcome in caller.call_all("work", timeout=WAIT_SECONDS)} == pids


def test_services_of_other_users_do_not_take_calls_from_each_other(bus: Daemon, first_user: User, second_user: User) -> None:
    """A group belongs to one user: who serves the same command gets each call too, but keeps none from the others."""
    ran: list[tuple[int, int]] = []
    with (
        running_service(bus.path, first_user, work=caller_of),
        running_service(bus.path, second_user, work=caller_of),
        Bus.connect(bus.path) as caller,
    ):
        for number in range(4):
            ran += [(number, outcome.member.uid) for outcome in caller.call_all("work", timeout=WAIT_SECONDS)]
            caller.call("work", timeout=WAIT_SECONDS)
        with caller.presence():
            while caller.statistics.stray_answers < 4:
                caller.ping()
    assert sorted(ran) == sorted((number, user.uid) for number in range(4) for user in (first_user, second_user))


def test_the_call_fails_if_the_service_that_runs_it_is_killed_and_others_serve(bus: Daemon) -> None:
    def suicide(request: Request) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    with (
        running_service(bus.path, work=suicide) as first,
        Bus.connect(bus.path) as caller,
        running_service(bus.path, work=caller_of) as second,
    ):
        outcomes = set()
        for _ in range(2):
            try:
                answer = caller.call("work", timeout=None)
                outcomes.add(answer.callee.pid if answer.callee else 0)
            except PeerDisconnected as error:
                outcomes.update(peer.pid for peer in error.callees)
        assert outcomes == {first.pid, second.pid}


def test_a_request_to_the_group_would_be_answered_by_others_than_the_list(bus: Daemon) -> None:
    """'The actual recipients don't match the list and the server could get more answers than expected': so each has its own request."""
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(running_service(bus.path, group="", work=caller_of))
        caller = stack.enter_context(Bus.connect(bus.path))
        outcomes = list(caller.call_all("work", timeout=WAIT_SECONDS))
        assert [outcome.answer.callee for outcome in outcomes if outcome.answer] == [outcome.member for outcome in outcomes]
        # One request went to both services: the second response is surplus and is not counted.
        caller.call("work", timeout=WAIT_SECONDS)
        with caller.presence():
            while caller.statistics.stray_answers == 0:
                caller.ping()


# Hostile users


def test_another_client_that_knows_the_return_address_cannot_respond(bus: Daemon, first_user: User, second_user: User) -> None:
    """It listens to all calls, and answers each at once, before the service does."""
    reader, writer = os.pipe()

    def forge() -> None:
        with Bus.connect(bus.path) as client, client.subscribe("rpc/") as calls:
            os.write(writer, b"x")
            for item in calls:
                assert isinstance(item, Message)
                asked = parse_envelope(item.payload)
                client.publish(asked.reply_to, Envelope(asked.command, asked.uid, b"forged").encode())

    def slowly(request: Request) -> bytes:
        with Bus.connect(bus.path) as own:
            # By the time of this answer the forged one has been routed.
            own.ping()
        return b"true"

    pid = os.fork()
    if pid == 0:
        try:
            os.setpgrp()  # with the process of the second user
            second_user.call(forge, WAIT_SECONDS * 4)
        finally:
            os._exit(0)
    try:
        assert os.read(reader, 1) == b"x"
        with running_service(bus.path, first_user, balance=slowly), Bus.connect(bus.path) as caller:
            assert [caller.call("balance", timeout=WAIT_SECONDS) for _ in range(20)] == [b"true"] * 20
            while not caller.statistics.stray_answers:  # the other process may be slower
                assert caller.call("balance", timeout=WAIT_SECONDS) == b"true"
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)
        bus.client().barrier()


def test_a_service_does_not_write_into_anothers_mailbox(bus: Daemon, first_user: User, second_user: User) -> None:
    """A request whose ``ret`` is another's address is not answered there, nor anywhere."""
    with Bus.connect(bus.path) as victim, victim.subscribe(victim.address) as mailbox:
        address = victim.address

        def misuse() -> bytes:
            with Bus.connect(bus.path) as client:
                client.publish("rpc/echo", Envelope("echo", "u1", b"bad words", f"{address}ret/x").encode())
                return bytes(client.call("echo", "good words", timeout=WAIT_SECONDS))

        with running_service(bus.path, first_user, echo=echo):
            assert second_user.call(misuse) == b"good words"
            victim.ping()
            with pytest.raises(TimedOut):
                mailbox.receive(0)


def test_only_permitted_callers_are_served(bus: Daemon, first_user: User, second_user: User) -> None:
    def call() -> bytes | str:
        with Bus.connect(bus.path) as client:
            try:
                return bytes(client.call("who", timeout=WAIT_SECONDS))
            except RemoteError as error:
                return error.words

    with running_service(bus.path, None, Allow(users=(first_user.uid,)), who=caller_of):
        assert isinstance(first_user.call(call), bytes)
        assert second_user.call(call) == f"user {second_user.uid} may not call who"
    with running_service(bus.path, None, Allow(groups=(second_user.gid,)), who=caller_of):
        assert isinstance(second_user.call(call), bytes)
        assert first_user.call(call) == f"user {first_user.uid} may not call who"


def test_a_wildcard_subscriber_does_not_hide_the_end_of_the_service(bus: Daemon, second_user: User) -> None:
    with Bus.connect(bus.path) as spy, spy.subscribe("", "rpc/"), Bus.connect(bus.path) as caller:
        with pytest.raises(NoRecipient):
            caller.call("slow", timeout=None)
        with running_service(bus.path, slow=never) as server, pytest.raises(PeerDisconnected):
            asyncio.run(_call_and_kill(bus.path, server))


async def _call_and_kill(path: str, server: ServiceProcess) -> None:
    """Call what never answers, and kill it when it has been called."""
    async with AsyncBus.connect(path) as caller:
        call = asyncio.ensure_future(caller.call("slow", timeout=None))
        while not (caller._caller and any(each.callees for each in caller._caller.requests._waiting.values())):
            await asyncio.sleep(0)
        server.kill()
        await asyncio.wait_for(call, WAIT_SECONDS)
