"""Calls on a small bus where a test can step in between any two packets; both faces do the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sbus import (
    Answer,
    AsyncBus,
    Bus,
    CallTimeout,
    Disconnected,
    ErrorCode,
    Message,
    NoRecipient,
    Peer,
    PeerDisconnected,
    RemoteError,
    RemoteRefusal,
    Request,
)
from sbus.protocol.envelope import Envelope, parse_envelope
from tests.support.minibus import WAIT_SECONDS, BusConnection, MiniBus
from tests.support.service_threads import ServiceThreads


def echo(request: Request) -> bytes:
    return request.data


class Face:
    """One of the two faces: makes a call on a new connection."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self._address = address

    def call(self, *args: Any, **kwargs: Any) -> Answer:
        if self.name == "blocking":
            with Bus.connect(self._address) as bus:
                return bus.call(*args, **kwargs)

        async def main() -> Answer:
            async with AsyncBus.connect(self._address) as bus:
                return await bus.call(*args, **kwargs)

        return asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


@pytest.fixture(params=["blocking", "asyncio"])
def face(request: pytest.FixtureRequest, mini_bus: MiniBus) -> Face:
    return Face(request.param, mini_bus.address)


def test_a_call_is_answered(face: Face, services: ServiceThreads) -> None:
    service = services.add(echo=echo)
    answer = face.call("echo", b"\0hello")
    assert answer == b"\0hello"
    assert answer.callee is not None
    assert answer.callee.connection == service.connection
    assert answer.source == 0


CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_service_finds_the_trace_context_and_passes_it_on(face: Face, mini_bus: MiniBus, services: ServiceThreads) -> None:
    def inner(request: Request) -> str:
        return request.context

    def outer(request: Request) -> bytes:
        with Bus.connect(mini_bus.address) as bus:
            return bus.call("inner", context=request.context)

    services.add(inner=inner)
    services.add(outer=outer)
    assert face.call("outer", context=CONTEXT) == CONTEXT.encode()
    assert face.call("outer") == b""


@pytest.mark.parametrize(("context", "error"), [("x", ValueError), (CONTEXT.upper(), ValueError), (7, TypeError)])
def test_a_caller_cannot_send_a_malformed_trace_context(face: Face, context: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="context"):
        face.call("echo", context=context)


def test_text_and_json_of_a_request_and_its_answer(face: Face, services: ServiceThreads) -> None:
    services.add(upper=lambda request: request.text.upper(), total=lambda request: f'{{"total": {sum(request.json())}}}')
    assert face.call("upper", "grün").text == "GRÜN"
    assert face.call("total", "[1, 2, 3]").json() == {"total": 6}
    for command, data in (("upper", b"\xff"), ("total", b"[1,")):
        with pytest.raises(RemoteError, match=r"the handler raised (UnicodeDecode|JSONDecode)Error"):
            face.call(command, data)


def test_a_call_without_a_service_fails(face: Face, services: ServiceThreads) -> None:
    services.add(echo=echo)
    with pytest.raises(NoRecipient, match="no service for 'other'"):
        face.call("other")


def test_a_wildcard_subscriber_does_not_count_as_a_service(face: Face, mini_bus: MiniBus) -> None:
    """Who listens to everything neither makes a service be there, nor keeps its end from being noticed."""
    with Bus.connect(mini_bus.address) as spy, spy.subscribe("", "rpc/echo"), pytest.raises(NoRecipient):
        face.call("echo")


def test_an_error_has_the_services_words(face: Face, services: ServiceThreads) -> None:
    def fail(request: Request) -> bytes:
        raise LookupError("no such account")

    services.add(fail=fail)
    with pytest.raises(RemoteError) as caught:
        face.call("fail")
    assert (caught.value.command, caught.value.words) == ("fail", "the handler raised LookupError")


def test_the_time_is_up(face: Face, mini_bus: MiniBus) -> None:
    with Bus.connect(mini_bus.address) as silent, silent.subscribe("rpc/slow", silent.address + "rpc/slow"):
        seconds, callees = 0.05, tuple[Peer, ...]()
        while not callees:  # on a busy machine, the time is up before they are known
            with pytest.raises(CallTimeout) as late:
                face.call("slow", timeout=seconds)
            assert late.value.seconds == seconds
            seconds, callees = seconds * 2, tuple(late.value.callees)
    assert [peer.connection for peer in callees] == [1]


def test_who_was_to_answer_goes(face: Face, mini_bus: MiniBus, services: ServiceThreads) -> None:
    service = services.add(slow=lambda _request: mini_bus.hang_up(service.connection))
    with pytest.raises(PeerDisconnected) as caught:
        face.call("slow", timeout=None)
    assert [peer.connection for peer in caught.value.callees] == [service.connection]


def test_the_last_one_going_is_what_counts(face: Face, mini_bus: MiniBus, services: ServiceThreads) -> None:
    def first_one(_request: Request) -> None:
        mini_bus.hang_up(first.connection)

    first = services.add(group="", both=first_one)

    def last_one(request: Request) -> str:
        mini_bus.wait_for(lambda: first.connection not in mini_bus.connections)
        return "still here"

    services.add(group="", both=last_one)
    assert face.call("both", timeout=WAIT_SECONDS) == b"still here"


STEPS: dict[str, Callable[[bytes], bool]] = {
    "before it is known who is there": lambda packet: packet == b"CMSG !/bus/members\0rpc/slow",
    "before the request": lambda packet: packet.startswith(b"MSG rpc/slow\0"),
    "before its end is watched": lambda packet: packet.startswith(b"SUB !/event/disconnect/"),
    "before it is asked whether it is there": lambda packet: packet.startswith(b"CMSG !/bus/members\0!/conn/"),
    "before the place of answers": lambda packet: packet.startswith(b"SUB !/conn/"),
}


@pytest.mark.parametrize("step", STEPS)
def test_the_callee_dies_at_each_step(face: Face, mini_bus: MiniBus, step: str) -> None:
    """Whenever the service dies, the call fails at once, with NoRecipient or PeerDisconnected, and not with a timeout."""
    with Bus.connect(mini_bus.address) as silent, silent.subscribe("rpc/slow", silent.address + "rpc/slow"):
        number = int(silent.address.split("/")[2])

        def before(connection: BusConnection, packet: bytes) -> None:
            if connection.number != number and STEPS[step](packet):
                mini_bus.hang_up(number)

        mini_bus.before = before
        with pytest.raises((NoRecipient, PeerDisconnected)) as caught:
            face.call("slow", timeout=None)
        assert number not in mini_bus.connections
        # A request that was not handed to anybody was not run, and that is said.
        expects_nobody = step in ("before it is known who is there", "before the request", "before the place of answers")
        assert caught.type is (NoRecipient if expects_nobody else PeerDisconnected)


def test_a_one_shot_service_that_answers_and_goes(face: Face, mini_bus: MiniBus) -> None:
    """Its answer counts, though it has gone before it was known who was called."""
    with Bus.connect(mini_bus.address) as service, service.subscribe("rpc/once", service.address + "rpc/once"):
        asked: list[Envelope] = []

        def before(connection: BusConnection, packet: bytes) -> None:
            if packet.startswith(b"MSG rpc/once\0"):
                asked.append(parse_envelope(packet.partition(b"\0")[2]))
            if packet.startswith(b"SUB !/event/disconnect/1"):
                mini_bus.publish(asked[0].reply_to.encode(), Envelope("once", asked[0].uid, b"x").encode(), 1)
                mini_bus.hang_up(1)

        mini_bus.before = before
        assert face.call("once", timeout=WAIT_SECONDS) == b"x"


def forged(mini_bus: MiniBus, face: Face, forge: Callable[[Envelope], None]) -> Answer | None:
    """Make a call during which *forge* acts when the request is on the bus; then the service answers ``true``."""
    with Bus.connect(mini_bus.address) as service, service.subscribe("rpc/secret", service.address + "rpc/secret"):
        number = int(service.address.split("/")[2])

        def before(connection: BusConnection, packet: bytes) -> None:
            if packet.startswith(b"MSG rpc/secret\0"):
                envelope = parse_envelope(packet.partition(b"\0")[2])
                forge(envelope)
                reply = Envelope("secret", envelope.uid, b"true")
                mini_bus.publish(envelope.reply_to.encode(), reply.encode(), number)

        mini_bus.before = before
        return face.call("secret", timeout=WAIT_SECONDS)


def test_an_answer_of_a_third_user_who_has_learnt_the_ret_is_refused(face: Face, mini_bus: MiniBus) -> None:
    mini_bus.uids = {50: 4_000}

    def forge(envelope: Envelope) -> None:
        mini_bus.publish(envelope.reply_to.encode(), Envelope("secret", envelope.uid, b"forged").encode(), 50)

    assert forged(mini_bus, face, forge) == b"true"


def test_an_answer_with_another_uid_is_refused(face: Face, mini_bus: MiniBus) -> None:
    def forge(envelope: Envelope) -> None:
        mini_bus.publish(envelope.reply_to.encode(), Envelope("secret", "guessed", b"forged").encode(), 1)

    assert forged(mini_bus, face, forge) == b"true"


def test_a_flood_of_forged_answers_does_not_hide_the_true_one(face: Face, mini_bus: MiniBus) -> None:
    def forge(envelope: Envelope) -> None:
        for _ in range(10):
            mini_bus.publish(envelope.reply_to.encode(), Envelope("secret", envelope.uid, b"forged").encode(), 50)

    assert forged(mini_bus, face, forge) == b"true"


def test_an_answer_that_cannot_be_read_fails_the_call(face: Face, mini_bus: MiniBus) -> None:
    with Bus.connect(mini_bus.address) as service, service.subscribe("rpc/odd", service.address + "rpc/odd"):

        def before(connection: BusConnection, packet: bytes) -> None:
            if packet.startswith(b"MSG rpc/odd\0"):
                mini_bus.publish(parse_envelope(packet.partition(b"\0")[2]).reply_to.encode(), b"{", 1)

        mini_bus.before = before
        with pytest.raises(RemoteError, match="invalid response: invalid envelope: not JSON"):
            face.call("odd", timeout=WAIT_SECONDS)


def test_a_call_of_one_member(face: Face, mini_bus: MiniBus, services: ServiceThreads) -> None:
    services.add(who=lambda _request: "first")
    second = services.add(who=lambda _request: "second")
    with Bus.connect(mini_bus.address) as bus:
        member = bus.members("rpc/who")[1]
    assert member.connection == second.connection
    assert face.call("who", member=member) == b"second"
    with pytest.raises(NoRecipient, match=r"no service for 'other' at !/conn/2/"):
        face.call("other", member=member)
    mini_bus.hang_up(second.connection)
    with pytest.raises(NoRecipient):
        face.call("who", member=member)


def test_a_member_that_goes_meanwhile(face: Face, mini_bus: MiniBus, services: ServiceThreads) -> None:
    service = services.add(slow=lambda _request: mini_bus.hang_up(service.connection))
    member = Peer(service.connection, 0, 0, 0, b"")
    with pytest.raises(PeerDisconnected):
        face.call("slow", member=member, timeout=None)


def test_a_call_of_another_host_goes_to_the_relay(face: Face, mini_bus: MiniBus) -> None:
    with Bus.connect(mini_bus.address) as relay, relay.subscribe("relay/", relay.address + "relay/"):
        seen: list[Envelope] = []

        def before(connection: BusConnection, packet: bytes) -> None:
            if packet.startswith(b"MSG relay/1002/wallet.balance\0"):
                seen.append(parse_envelope(packet.partition(b"\0")[2]))
                reply = Envelope("wallet.balance", seen[0].uid, b"18024884.1393419", source=1002)
                mini_bus.publish(seen[0].reply_to.encode(), reply.encode(), 1)

        mini_bus.before = before
        answer = face.call("wallet.balance", "x", twin=1002, timeout=60.0, tries=7)
        assert (answer, answer.source) == (b"18024884.1393419", 1002)
        assert (seen[0].destinations, seen[0].data, seen[0].expires_seconds, seen[0].tries) == ((1002,), b"x", 60, 7)
        mini_bus.hang_up(1)
        with pytest.raises(NoRecipient, match=r"cannot call 'wallet.balance' on host 1002: sbus-relay is not running on this bus"):
            face.call("wallet.balance", twin=1002)


def test_a_relays_error_is_a_remote_one(face: Face, mini_bus: MiniBus) -> None:
    with Bus.connect(mini_bus.address) as relay, relay.subscribe("relay/", relay.address + "relay/"):

        def before(connection: BusConnection, packet: bytes) -> None:
            if packet.startswith(b"MSG relay/"):
                asked = parse_envelope(packet.partition(b"\0")[2])
                reply = Envelope(asked.command, asked.uid, error="destination not found", source=1002)
                mini_bus.publish(asked.reply_to.encode(), reply.encode(), 1)

        mini_bus.before = before
        with pytest.raises(RemoteError, match="destination not found"):
            face.call("x", twin=1002)


def test_a_call_works_if_the_bus_hides_the_end_of_the_callee(mini_bus: MiniBus, services: ServiceThreads) -> None:
    """Where a rule hides events a call works all the same, and that its callee was not watched is counted."""
    services.add(echo=echo)
    mini_bus.refused_patterns = {b"!/event/": ErrorCode.EPERM}
    with Bus.connect(mini_bus.address) as bus:
        assert [bus.call("echo", "a"), bus.call("echo", "b")] == [b"a", b"b"]
        (outcome,) = bus.call_all("echo", "c")
        assert outcome.result() == b"c"
        assert bus.statistics.unwatched_callees == 3
        assert bus.statistics.refusals == 1


def test_the_bus_goes_while_a_call_waits(face: Face, mini_bus: MiniBus, services: ServiceThreads) -> None:
    def hang_up_on_the_caller(request: Request) -> None:
        mini_bus.hang_up(request.caller.connection)

    services.add(slow=hang_up_on_the_caller)
    with pytest.raises(Disconnected):
        face.call("slow", timeout=None)


@pytest.mark.parametrize("command", ["", "a*", "a\0", "x" * 257])
def test_what_cannot_be_a_command(face: Face, command: str) -> None:
    with pytest.raises(ValueError, match="the command"):
        face.call(command)


def test_a_member_and_a_twin_exclude_each_other(face: Face) -> None:
    with pytest.raises(ValueError, match="not both"):
        face.call("a", member=Peer(1, 0, 0, 0, b""), twin=1)
    for twin in (-1, 0):
        with pytest.raises(ValueError, match=f"invalid twin {twin}: must be 1 to 4294967295"):
            face.call("a", twin=twin)
    for tries in (-1, 1_001):
        with pytest.raises(ValueError, match=f"invalid tries {tries}: must be 0 to 1000"):
            face.call("a", twin=1, tries=tries)


def test_a_late_response_is_discarded_and_counted(mini_bus: MiniBus) -> None:
    with (
        Bus.connect(mini_bus.address) as service,
        service.subscribe("rpc/slow", service.address + "rpc/slow"),
        Bus.connect(mini_bus.address) as bus,
    ):
        kept: list[Envelope] = []

        def before(connection: BusConnection, packet: bytes) -> None:
            if packet.startswith(b"MSG rpc/slow\0") and not (sent := parse_envelope(packet.partition(b"\0")[2])).cancel:
                kept.append(sent)
                if len(kept) == 2:
                    # The answer to the first call comes when the second waits.
                    for number, asked in enumerate(kept):
                        mini_bus.publish(asked.reply_to.encode(), Envelope("slow", asked.uid, b"%d" % number).encode(), 1)

        mini_bus.before = before
        seconds = 0.02
        while not kept:  # on a busy machine, the time is up before the request is sent
            with pytest.raises(CallTimeout):
                bus.call("slow", timeout=seconds)
            bus.ping()
            seconds *= 2
        assert bus.call("slow", timeout=WAIT_SECONDS) == b"1"
        assert bus.statistics.stray_answers == 1


def test_a_second_call_of_a_known_service_takes_one_round_trip(mini_bus: MiniBus, services: ServiceThreads) -> None:
    services.add(echo=echo)
    with Bus.connect(mini_bus.address) as bus:
        bus.call("echo")
        bus.ping()
        caller = mini_bus.connections[2]
        del caller.received[:]
        bus.call("echo")
        bus.ping()
        kinds = [packet.split(b"\0")[0] for packet in caller.received]
        assert kinds == [b"CMSG receipt/recipients", b"MSG rpc/echo", b"CMSG !/bus/ping", b"CMSG !/bus/ping"]


def test_after_a_reconnection_calls_work_from_the_new_address(mini_bus: MiniBus, services: ServiceThreads) -> None:
    services.add(echo=echo)
    with Bus.connect(mini_bus.address, reconnect=True) as bus:
        assert bus.call("echo", "a") == b"a"
        old = bus.address
        mini_bus.hang_up(2)
        with pytest.raises(Disconnected):
            bus.ping()
        assert bus.call("echo", "b") == b"b"
        assert bus.address != old


def test_callers_are_cancelled_at_each_await(mini_bus: MiniBus, services: ServiceThreads) -> None:
    """Wherever a call is cancelled, the next one gets its own answer, and nothing of the first is left behind."""
    services.add(echo=echo)

    async def main() -> int:
        cancelled = 0
        async with AsyncBus.connect(mini_bus.address) as bus:
            for steps in range(1_000):
                call = asyncio.ensure_future(bus.call("echo", f"given up {steps}"))
                for _ in range(steps % 40):
                    await asyncio.sleep(0)
                was_cancelled = call.cancel()
                done = (await asyncio.gather(call, return_exceptions=True))[0]
                cancelled += was_cancelled
                assert isinstance(done, asyncio.CancelledError) if was_cancelled else done == b"given up %d" % steps
                if steps % 50 == 0:
                    assert await bus.call("echo", f"own {steps}") == b"own %d" % steps
            assert await bus.call("echo", "last") == b"last"
            await bus.ping()
            assert bus._caller is not None
            assert not bus._caller.requests._waiting
        return cancelled

    assert asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS * 2)) > 100


def test_many_calls_of_one_connection_at_once(mini_bus: MiniBus, services: ServiceThreads) -> None:
    services.add(echo=echo)
    services.add(other=echo)

    async def main() -> None:
        async with AsyncBus.connect(mini_bus.address) as bus:
            calls: list[Awaitable[Answer]] = [bus.call(("echo", "other")[number % 2], f"{number}") for number in range(200)]
            answers = await asyncio.gather(*calls)
            assert answers == [b"%d" % number for number in range(200)]

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


def test_losses_make_the_callees_be_looked_for_again(mini_bus: MiniBus) -> None:
    """The word of a callee's end may be among what the bus discarded; the call must not wait for it."""
    with (
        Bus.connect(mini_bus.address) as silent,
        silent.subscribe("rpc/slow", silent.address + "rpc/slow"),
        Bus.connect(mini_bus.address) as bus,
    ):

        def before(connection: BusConnection, packet: bytes) -> None:
            # The third ping closes the last question about who was called; then the client waits for the answer alone.
            if packet.startswith(b"CMSG !/bus/ping") and connection.received.count(b"CMSG !/bus/members\0rpc/slow") == 2:
                connection.patterns.clear()
                mini_bus.hang_up(1)
                connection.say(b"CMSG !/bus/lost\0005")
                mini_bus.before = lambda _connection, _packet: None

        mini_bus.before = before
        with pytest.raises(PeerDisconnected):
            bus.call("slow", timeout=None)


def test_a_rule_forbids_the_call(face: Face, mini_bus: MiniBus, services: ServiceThreads) -> None:
    services.add(echo=echo)

    def before(connection: BusConnection, packet: bytes) -> bool:
        if packet.startswith(b"MSG rpc/"):
            connection.say(b"CMSG !/bus/error\0EPERM a rule")
            return True
        return False

    mini_bus.before = before
    with pytest.raises(RemoteRefusal, match="the bus refused a call of 'echo': EPERM a rule"):
        face.call("echo")


def test_a_service_that_lost_the_bus_serves_again_at_its_new_address(face: Face, mini_bus: MiniBus, services: ServiceThreads) -> None:
    def stop(request: Request) -> None:
        raise SystemExit

    service = services.add(reconnect=True, echo=echo, stop=stop)
    old = service.connection
    assert face.call("echo", "a", timeout=WAIT_SECONDS) == b"a"
    mini_bus.hang_up(old)
    mini_bus.wait_for(lambda: any(pattern.endswith(b"/rpc/echo") for each in mini_bus.connections.values() for pattern in each.patterns))
    answer = face.call("echo", "b", timeout=WAIT_SECONDS)
    assert answer == b"b"
    assert answer.callee is not None
    assert answer.callee.connection != old
    with pytest.raises(RemoteError, match="the service stopped"):
        face.call("stop", timeout=WAIT_SECONDS)


def test_verified_senders_are_requested_again_after_a_reconnection(mini_bus: MiniBus) -> None:
    with Bus.connect(mini_bus.address, reconnect=True) as bus, bus.subscribe("a") as sub:
        bus.tell("sender/on")
        bus.ping()
        mini_bus.hang_up(1)
        with pytest.raises(Disconnected):
            bus.ping()
        assert bus.publish("a", "x", receipt=True) == 1
        assert not isinstance(sub.receive(WAIT_SECONDS), Message)
        message = sub.receive(WAIT_SECONDS)
        assert isinstance(message, Message)
        assert message.sender is not None
        assert message.sender.address == bus.address
