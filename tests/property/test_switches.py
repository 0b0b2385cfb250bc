"""The compiled switch and the model get the same random packets; every delivery, its order, every report and counter must agree.

At any point the compiled switch may hand over to another one, as in a restart, while the model goes on: nobody must notice.
"""

from __future__ import annotations

import contextlib
import re
from typing import Literal, NamedTuple, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from sbus.protocol.packets import BATCH_HEAD, is_batch, parse_batch
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import PublishRule, Sight
from tests.oracle.kernel import SocketModel
from tests.support.examples import examples
from tests.support.malformed_batches import FAULTS, batch_of
from tests.support.switch_harness import MakeSwitch, Party, SwitchHarness

KEYS = st.sampled_from(
    [
        *b"a|a/b|a/b/c|a/||/|ab/c|b|!/cred/0/0/0/x|!/cred/0|!/bus|!x|a/*".split(b"|"),
        *b"!/conn/1/|!/conn/1/a|!/conn/1/a/b|!/conn/1/!/cred/0|!/conn/1/!/conn/2/a".split(b"|"),
        b"x" * 40,
    ],
)
PATTERNS = st.sampled_from(
    b"|a|a/|a/*|*|*/b|a*|a*/c|a/*/c|**|a*b|!/cred/0/0/0/x|!/cred/0/0/0/|!/conn/1/|!*/|*/cred/|!/event/|!/".split(b"|")
)
SIZES = st.sampled_from([0, 1, 100, 20_000, 60_000, 150_000])
SMALL_BUFFER = 40_000
"""SO_SNDBUF with room for a few packets. The longest batch fits, the longest message never does."""

ODD = st.sampled_from(
    [
        *b"CMSG !/from/|CMSG !/from/x/!/cred/1/2/3|CMSG !/from/x/!/cred/1/2/3\0|CMSG !/from/x/!/cred/1/2/3\0MSG a".split(b"|"),
        *b"CMSG !/from/x/!/cred/1/2/3\0SUB a|CMSG !/from/x/!/cred/1/2/3\0CMSG !/from/x/!/cred/1/2/3\0MSG a\0".split(b"|"),
        *b"|M|MSG a|SUB|BAD x|CMSG ping\x00token|CMSG echo/off|CMSG echo/on|SUB a\x00ignored".split(b"|"),
        b"MSG %b\x00" % (b"k" * 100),
        b"CMSG !/from/x/!/cred/1/2/3\0MSG %b\0" % (b"k" * 100),
        b"CMSG !/to/1\0MSG %b\0" % (b"k" * 100),
        *b"CMSG !/to/|CMSG !/to/1|CMSG !/to/1\0|CMSG !/to/1\0MSG a|CMSG !/to/1\0SUB a|CMSG !/to/1\0CMSG !/to/1\0MSG a\0".split(b"|"),
    ]
)

ORIGIN = b"!/host/alpha/!/cred/1/2/3"
ORIGINS = st.sampled_from([ORIGIN, ORIGIN, b"x/!/cred/1/2/3", b"!/host/" + b"a" * 300 + b"/!/cred/1/2/3"])
MALFORMED_ORIGINS = st.sampled_from(
    [
        *b"|!/cred/1/2/3|/!/cred/1/2/3|x/!/cred/1/2|x/!/cred/1/2/|x/!/cred/1/2/3/|x/!/cred/1/2/12345678901|x y/!/cred/1/2/3".split(b"|"),
        *(b'x"/!/cred/1/2/3', b"x\\/!/cred/1/2/3", b"\xff/!/cred/1/2/3", b"a" * 600 + b"/!/cred/1/2/3", b"!/cred//1/x/!/cred/1/2/3"),
    ]
)


def vouched(origin: bytes, packet: bytes) -> bytes:
    """Return a packet for which a client vouches, well-formed or not."""
    return b"CMSG !/from/%b\0%b" % (origin, packet)


RECIPIENTS = st.integers(1, 9) | st.sampled_from([1, 2, 2**32 + 1, 10**18 - 1])
MALFORMED_NUMBERS = st.sampled_from([*b"|0|01|-1|+1|1 |1/|x|1_0".split(b"|"), b"1" * 19, b"9" * 600, b"\xff"])


def direct(number: int | bytes, packet: bytes) -> bytes:
    """Return a packet for one connection alone, well-formed or not."""
    return b"CMSG !/to/%b\0%b" % (b"%d" % number if isinstance(number, int) else number, packet)


class Direct(NamedTuple):
    """A message that is published to one connection, several times."""

    key: bytes
    size: int
    times: int
    origin: bytes | None
    """Where it comes from, if the publisher vouches for it."""


DIRECT = st.builds(Direct, KEYS, SIZES, st.integers(1, 9), st.none() | ORIGINS)

INNER = st.one_of(
    st.tuples(KEYS, st.sampled_from([0, 1, 100, 20_000])).map(lambda each: b"MSG %b\0%b" % (each[0], bytes(each[1]))),
    st.sampled_from(
        b"SUB a|UNSUB a|SUB *|CMSG ping|CMSG echo/on|CMSG batch/on|CMSG batch/off|CMSG receipt/always\x00t|CMSG sender/on".split(b"|")
    ),
    st.just(b"MSG !/cred/0/0/0/x\0"),
    st.tuples(ORIGINS, KEYS, st.sampled_from([0, 100, 20_000])).map(
        lambda each: vouched(each[0], b"MSG %b\0%b" % (each[1], bytes(each[2])))
    ),
    st.tuples(RECIPIENTS, KEYS, st.sampled_from([0, 100, 20_000]), st.booleans()).map(
        lambda each: direct(each[0], (vouched(ORIGIN, b"") if each[3] else b"") + b"MSG %b\0%b" % (each[1], bytes(each[2])))
    ),
)

MODES = st.sampled_from(
    b"blocking/soft/queue blocking/soft/discard blocking/soft/block blocking/soft/error blocking/hard/discard blocking/hard/block "
    b"blocking/hard/error order/queue order/stack order/random order/latest order/latest order/fair order/fair pace/on pace/off".split()
)
RULES = (PublishRule(b"!/conn/1/a/", False), PublishRule(b"a/", False), PublishRule(b"a", True), PublishRule(b"", False))


class Client(NamedTuple):
    """A client that connects."""

    patterns: list[bytes]
    settings: list[bytes]
    send_buffer: int | None
    user: int | None
    blocks_others: bool
    rules: int
    sight: Sight
    may_vouch: bool
    may_deliver: bool
    may_know: bool
    """Whether it may know who gets a message to a private key."""
    charged: int = 3  # the user that is charged for it, if its own number is greater


CLIENT = st.builds(
    Client,
    patterns=st.just([b""]) | st.lists(PATTERNS, max_size=3),
    settings=st.lists(st.sampled_from([b"sender/on", b"tap/on\0", b"batch/on"]) | MODES, max_size=3),
    send_buffer=st.sampled_from([None, SMALL_BUFFER]),
    user=st.sampled_from([None, 1, 1, 2, 2, 3]),
    charged=st.sampled_from([1, 3, 3]),
    blocks_others=st.booleans(),
    rules=st.just(0) | st.just(0) | st.integers(0, 15),
    sight=st.sampled_from(Sight),
    may_vouch=st.booleans(),
    may_deliver=st.booleans(),
    may_know=st.booleans(),
)

LIMITS = LimitSettings(
    queue_packets=6,
    queue_bytes=500_000,
    key_bytes=64,
    cache_bytes=1 << 16,
    queued_memory=2_000_000,
    low_water=40,
    block_timeout=3_600.0,  # so that no publisher goes on in one world only because the other took its time
    progress_timeout=3_600.0,
    pace_limit=1.0,
    turn_time=10.0,  # so that what is delivered in which order does not hang on how fast this machine is
)
IGNORED = {"turns", "cache_hits", "cache_misses"}


def timeless(packets: list[bytes]) -> list[tuple[bytes, ...]]:
    """Return *packets* without the times at which messages came, of which all have the same length; of a batch what is in it."""
    return [tuple(map(without_time, parse_batch(packet))) if is_batch(packet) else (without_time(packet),) for packet in packets]


def without_time(packet: bytes) -> bytes:
    """Return a packet without the time at which a message came, if it tells of one."""
    return re.sub(rb'^(CMSG !/tap\0{"kind":"message","time":)[0-9]{19},', rb"\1,", packet)


def by_connection(reported: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Return the reports in the order of connections, which is free within a turn. In how many parts losses are reported is free too."""
    ordered: list[tuple[object, ...]] = []
    for report in sorted(reported, key=lambda report: repr(report[1])):
        is_more = ordered and report[0] == "lost" and report[:2] == ordered[-1][:2]
        ordered.append((*report[:2], cast(int, ordered.pop()[2]) + cast(int, report[2])) if is_more else report)
    return ordered


class SwitchAndModel(RuleBasedStateMachine):
    """Each rule does the same to both harnesses."""

    clients: Bundle[int] = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.harnesses = self.make_harnesses()
        self.compiled, self.modelled = self.harnesses
        self.model = cast(SocketModel, self.modelled.switch)
        self.stamp = 0
        for harness in self.harnesses:
            harness.set_publish_rules(RULES)

    def make_harnesses(self) -> tuple[SwitchHarness, SwitchHarness]:
        """Return a bus with the compiled switch, and one with the model."""
        return SwitchHarness(LIMITS), SwitchHarness(LIMITS, make_switch=cast(MakeSwitch, SocketModel))

    def settle(self) -> None:
        """Let both work until nothing is ready."""
        for harness in self.harnesses:
            harness.run()

    @initialize(target=clients, first=st.lists(CLIENT, min_size=3, max_size=6))
    def connect_some(self, first: list[Client]) -> MultipleResults[int]:
        """Begin with enough clients that they meet: one alone has nobody to wait for."""
        return multiple(*map(self.connect_one, first))

    @rule(target=clients, client=CLIENT)
    def connect(self, client: Client) -> int:
        return self.connect_one(client)

    def connect_one(self, client: Client) -> int:
        (number,) = {harness.connect(*client.patterns, send_buffer=client.send_buffer) for harness in self.harnesses}
        for harness in self.harnesses:
            if not client.may_know:
                harness.unprivileged.add(number)
            if client.user is not None:
                cred = b"!/cred/1/2/%d" % number
                rights = Party(blocks_others=client.blocks_others, rules=client.rules, sight=client.sight, cred=cred)
                rights |= Party(may_vouch=client.may_vouch, may_deliver=client.may_deliver, charged=min(client.user, client.charged))
                harness.set_party(number, client.user, **rights)
        for setting in client.settings:
            self.both(number, b"CMSG " + setting)
        self.settle()
        return number

    @rule(client=clients, mode=MODES)
    def choose_mode(self, client: int, mode: bytes) -> None:
        self.both(client, b"CMSG " + mode)

    @rule(client=clients, packets=st.integers(1, 12), size=st.sampled_from([300_000, 900_000, 3_000_000]))
    def limit_user(self, client: int, packets: int, size: int) -> None:
        for harness in self.harnesses:
            if client in harness.switch.connections() and (party := harness.parties.get(client)) is not None:
                harness.set_user_limits(party[1]["charged"], packets, size)

    @rule(client=clients, pattern=PATTERNS)
    def subscribe(self, client: int, pattern: bytes) -> None:
        self.both(client, b"SUB " + pattern)

    @rule(client=clients, pattern=PATTERNS)
    def unsubscribe(self, client: int, pattern: bytes) -> None:
        self.both(client, b"UNSUB " + pattern)

    @rule(client=clients, pattern=PATTERNS)
    def join(self, client: int, pattern: bytes) -> None:
        """Join one of two groups. A client joins only one, because in which order it gets a message of two groups is undefined."""
        self.both(client, b"CMSG group/join\0g%d\0%b" % (client % 2, pattern))

    @rule(client=clients, pattern=PATTERNS)
    def leave(self, client: int, pattern: bytes) -> None:
        self.both(client, b"CMSG group/leave\0g%d\0%b" % (client % 2, pattern))

    @rule(
        members=st.lists(clients, min_size=2, max_size=4),
        client=clients,
        count=st.integers(5, 20),
        sizes=st.sampled_from([100, 20_000, 60_000]),
    )
    def share_work(self, members: list[int], client: int, count: int, sizes: int) -> None:
        """Publish more to a group than its members read."""
        for member in members:
            self.both(member, b"CMSG group/join\0g%d\0a" % (member % 2))
        for _ in range(count):
            self.stamp += 1
            self.both(client, b"MSG a\0%d %b" % (self.stamp, bytes(sizes)), settles=self.stamp % 3 == 0)
        self.settle()

    @rule(client=clients, key=KEYS, size=SIZES, count=st.integers(1, 9), settles=st.booleans())
    def publish(self, client: int, key: bytes, size: int, count: int, settles: bool) -> None:
        for _ in range(count):
            self.stamp += 1
            self.both(client, b"MSG %b\0%d %b" % (key, self.stamp, bytes(size)), settles=settles)
        self.settle()

    @rule(client=clients, message=st.tuples(ORIGINS, KEYS, SIZES), count=st.integers(1, 9), receipt=st.booleans(), plain=st.booleans())
    def vouch(self, client: int, message: tuple[bytes, bytes, int], count: int, receipt: bool, plain: bool) -> None:
        """Publish in the name of others, also between messages of the client's own."""
        origin, key, size = message
        for _ in range(count):
            self.stamp += 1
            if receipt:
                self.both(client, b"CMSG receipt/always\x00%d" % self.stamp, settles=False)
            self.both(client, vouched(origin, b"MSG %b\0%d %b" % (key, self.stamp, bytes(size))), settles=False)
            if plain:
                self.both(client, b"MSG %b\0%d" % (key, self.stamp), settles=False)
        self.settle()

    @rule(client=clients, origin=MALFORMED_ORIGINS)
    def vouch_for_nothing(self, client: int, origin: bytes) -> None:
        self.both(client, vouched(origin, b"MSG a\0never"))

    @rule(client=clients, recipient=clients | RECIPIENTS, message=DIRECT, receipt=st.booleans(), plain=st.booleans())
    def deliver(self, client: int, recipient: int, message: Direct, receipt: bool, plain: bool) -> None:
        """Publish to one connection alone, also in the name of others, and between messages for all."""
        for _ in range(message.times):
            self.stamp += 1
            if receipt:
                self.both(client, b"CMSG receipt/recipients\x00%d" % self.stamp, settles=False)
            packet = b"MSG %b\0%d %b" % (message.key, self.stamp, bytes(message.size))
            packet = packet if message.origin is None else vouched(message.origin, packet)
            self.both(client, direct(recipient, packet), settles=False)
            if plain:
                self.both(client, b"MSG %b\0%d" % (message.key, self.stamp), settles=False)
        self.settle()

    @rule(client=clients, number=MALFORMED_NUMBERS)
    def deliver_to_a_malformed_number(self, client: int, number: bytes) -> None:
        self.both(client, direct(number, b"MSG a\0never"))

    @rule(client=clients, on=st.booleans(), right=st.sampled_from(["may_vouch", "may_deliver"]))
    def change_right(self, client: int, on: bool, right: Literal["may_vouch", "may_deliver"]) -> None:
        for harness in self.harnesses:
            if client in harness.switch.connections() and (party := harness.parties.get(client)) is not None:
                party[1][right] = on
                harness.set_party(client, party[0], **party[1])

    @rule(client=clients, count=st.sampled_from([0, 1, 5, 10**15 - 1]), patterns=st.lists(PATTERNS, min_size=1, max_size=5))
    def report_loss(self, client: int, count: int, patterns: list[bytes]) -> None:
        self.both(client, b"CMSG lost/for\0%d\0%b" % (count, b"\0".join(patterns)))

    @rule(
        client=clients,
        recipient=clients,
        mode=st.sampled_from([b"blocking/soft/block", b"blocking/hard/block", b"blocking/soft/queue"]),
        pace=st.sampled_from([b"pace/on", b"pace/off"]),
        count=st.integers(5, 20),
    )
    def flood(self, client: int, recipient: int, mode: bytes, pace: bytes, count: int) -> None:
        """Publish more than most queues hold, to a recipient that can block."""
        self.both(recipient, b"SUB a")
        self.both(recipient, b"CMSG " + mode)
        self.both(client, b"CMSG " + pace)
        for _ in range(count):
            self.stamp += 1
            self.both(client, b"MSG a\0%d %b" % (self.stamp, bytes(20_000 if count > 9 else 60_000)))

    @rule(client=clients, kind=st.sampled_from([b"always", b"undeliverable", b"recipients"]), key=KEYS, size=SIZES, count=st.integers(0, 3))
    def publish_with_receipt(self, client: int, kind: bytes, key: bytes, size: int, count: int) -> None:
        for _ in range(count):
            self.stamp += 1
            self.both(client, b"CMSG receipt/%b\x00%d" % (kind, self.stamp), settles=False)
            self.both(client, b"MSG %b\0%d %b" % (key, self.stamp, bytes(size)), settles=False)
        self.settle()

    @rule(
        client=clients,
        packets=st.lists(INNER, max_size=12),
        times=st.sampled_from([1, 1, 3, 20]),
        fault=st.none() | st.sampled_from(FAULTS),
    )
    def publish_a_batch(self, client: int, packets: list[bytes], times: int, fault: bytes | None) -> None:
        # Behind the fault, what would be well-formed again.
        tail = b"" if fault is None else fault + batch_of([b"MSG a\0never"])[len(BATCH_HEAD) :]
        batch = batch_of(packets * times) + tail
        if len(batch) < 200_000:
            self.stamp += 1
            self.both(client, batch, settles=False)
            self.both(client, b"MSG a/b\0%d" % self.stamp)

    @rule(
        client=clients,
        packets=st.lists(INNER, min_size=1, max_size=12),
    )
    def hand_over_within_a_batch(self, client: int, packets: list[bytes]) -> None:
        """Both at once: what is found readable again after a restart decides how much of a batch is handled in the next turn."""
        self.stamp += 1
        self.both(client, batch_of([packet for packet in packets if len(packet) < 1_000] * 20), settles=False)
        self.both(client, b"MSG a\0%d" % self.stamp, settles=False)
        for harness in self.harnesses:
            harness.switch.turn(0)
        self.compiled.hand_over()
        self.model.renew()
        self.settle()

    @rule(client=clients, on=st.booleans())
    def want_batches(self, client: int, on: bool) -> None:
        self.both(client, b"CMSG batch/on" if on else b"CMSG batch/off")

    @rule(client=clients, on=st.booleans())
    def want_senders(self, client: int, on: bool) -> None:
        self.both(client, b"CMSG sender/on" if on else b"CMSG sender/off")

    @rule(client=clients, pattern=st.none() | PATTERNS)
    def tap(self, client: int, pattern: bytes | None) -> None:
        self.both(client, b"CMSG tap/off" if pattern is None else b"CMSG tap/on\0" + pattern)

    @rule(key=st.sampled_from([b"a", b"!/event/connect/1", b"!/bus/lost"]), size=SIZES, sight=st.sampled_from(Sight), uid=st.integers(1, 3))
    def announce(self, key: bytes, size: int, sight: Sight, uid: int) -> None:
        for harness in self.harnesses:
            harness.switch.announce(b"MSG %b\0%b" % (key, bytes(size)), sight=sight, uid=uid, payer=uid, cred=b"!/cred/0/0/9")
            harness.switch.report(key, b"CMSG !/tap\0{}\n" + bytes(size), uid=uid)
        self.settle()

    @rule()
    def hand_over(self) -> None:
        """Restart the compiled switch: nothing that follows may differ from the model, which goes on."""
        self.compiled.hand_over()
        self.model.renew()

    @rule(client=clients, packet=ODD)
    def send_something_odd(self, client: int, packet: bytes) -> None:
        self.both(client, packet)

    @rule(client=clients, at_most=st.integers(1, 5))
    def read(self, client: int, at_most: int) -> None:
        received = [timeless(harness.receive(client, at_most)) for harness in self.harnesses]
        assert received[0] == received[1]
        self.settle()

    @rule(client=clients)
    def read_all(self, client: int) -> None:
        """Read until nothing more comes."""
        while (received := [timeless(harness.receive(client)) for harness in self.harnesses])[0]:
            assert received[0] == received[1]
            if received[0][-1] == (b"",):
                break
            self.settle()
        assert received[0] == received[1]

    @rule(client=clients)
    def shut_down_sending(self, client: int) -> None:
        for harness in self.harnesses:
            try:
                harness.clients[client].shutdown(1)
            except OSError:
                assert harness.receive(client)[-1:] == [b""]
        self.settle()

    @rule(client=consumes(clients), last=st.lists(KEYS, max_size=3))
    def hang_up(self, client: int, last: list[bytes]) -> None:
        for harness in self.harnesses:
            for key in last:
                harness.send(client, b"MSG %b\0last words" % key)
            harness.hang_up(client)
        self.settle()

    @rule(client=consumes(clients), packets=st.lists(INNER, min_size=1, max_size=12))
    def hang_up_within_a_batch(self, client: int, packets: list[bytes]) -> None:
        """Shut down sending behind a batch, and close while its rest is not handled yet."""
        self.both(client, batch_of([packet for packet in packets if len(packet) < 1_000] * 20), settles=False)
        for harness in self.harnesses:
            with contextlib.suppress(OSError):  # the bus has closed it
                harness.clients[client].shutdown(1)
            harness.switch.turn(0)
            harness.hang_up(client)
        self.settle()

    def both(self, client: int, packet: bytes, *, settles: bool = True) -> None:
        taken = {harness.send(client, packet) for harness in self.harnesses}
        assert len(taken) == 1
        if settles:
            self.settle()

    @invariant()
    def reports_agree(self) -> None:
        reported = [by_connection(harness.events) for harness in self.harnesses]
        assert reported[0] == reported[1]

    @invariant()
    def counters_agree(self) -> None:
        counters = [harness.switch.counters()._asdict() for harness in self.harnesses]
        assert [name for name in counters[0] if counters[0][name] != counters[1][name] and name not in IGNORED] == []
        assert self.compiled.switch.connections() == self.model.connections()
        for number in self.compiled.switch.connections():
            assert self.compiled.switch.connection_counters(number) == self.model.connection_counters(number)
            assert self.compiled.switch.patterns(number) == self.model.patterns(number)
            progress, blocked = self.compiled.switch.progress(number), self.model.blocked(number)
            # Publishers that have ended may still be named, until something is sent or the switch is restarted.
            live = set(self.model.connections())
            assert [each for each in progress.blocks if each in live] == [each for each in blocked if each in live]
            assert live.intersection(progress.paces) == {each for each in live.intersection(blocked) if blocked[each]}
        for user in (1, 2, 3):
            assert self.compiled.switch.user_counters(user) == self.model.user_counters(user)

    @invariant()
    def counters_add_up(self) -> None:
        for harness in self.harnesses:
            harness.check_balance()

    def teardown(self) -> None:
        for client in list(self.compiled.clients):
            self.read_all(client)
        self.counters_add_up()
        for harness in self.harnesses:
            harness.close()


SwitchAndModel.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40)
TestSwitchAndModel = SwitchAndModel.TestCase


def test_a_publisher_that_closes_while_it_waits_for_itself() -> None:
    """It had shut down its sending side. Found in 4,000 examples: the switch forgot what it had read and not handled yet."""
    machine = SwitchAndModel()
    own = Client([b""], [b"pace/on"], None, 1, False, 0, Sight.OWN, False, False, False)
    publisher, reader = machine.connect_one(own), machine.connect_one(own._replace(settings=[], send_buffer=SMALL_BUFFER))
    machine.flood(publisher, reader, b"blocking/soft/block", b"pace/on", 9)
    machine.share_work([reader], reader, 12, 20_000)
    machine.shut_down_sending(publisher)
    machine.hang_up(reader, [b"a"])
    machine.hang_up(publisher, [])
    machine.reports_agree()
    machine.counters_agree()
    assert machine.compiled.switch.counters().messages == 22
    machine.teardown()
