"""Slow streams have the deliveries, losses and counters of the model, whatever part of a frame their sockets take.

The subscribers read any number of bytes at any time. They have heads, groups, orders and modes, and the compiled switch hands over
within frames.
"""

from __future__ import annotations

import contextlib
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import Sight
from tests.oracle.kernel import SocketModel
from tests.property.test_switches import IGNORED, by_connection, timeless
from tests.support.examples import examples
from tests.support.switch_harness import MakeSwitch, SwitchHarness

SETTINGS = st.sampled_from(
    b"sender/on sender/off order/queue order/latest order/stack order/random blocking/soft/queue blocking/soft/discard blocking/soft/block "
    b"blocking/hard/discard blocking/hard/block blocking/hard/error tap/on\0 tap/off group/join\0g\0a group/leave\0g\0a".split(b" ")
)
SIZES = st.sampled_from([0, 1, 100, 4_000, 4_090, 4_100, 20_000, 70_000, 200_000])
LIMITS = LimitSettings(
    queue_packets=8,
    queue_bytes=600_000,
    queued_memory=2_000_000,
    block_timeout=3_600.0,
    progress_timeout=3_600.0,
    turn_time=10.0,  # so that no turn sends less than the sockets take
)
KEYS = st.sampled_from([b"a", b"a", b"b", b"c"])


class StreamsAndModel(RuleBasedStateMachine):
    """Each rule does the same to both harnesses: two publishers on packet sockets, and subscribers on streams."""

    streams: Bundle[int] = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        self.harnesses = SwitchHarness(LIMITS), SwitchHarness(LIMITS, make_switch=cast(MakeSwitch, SocketModel))
        self.compiled, self.modelled = self.harnesses
        self.model = cast(SocketModel, self.modelled.switch)
        self.publishers = [self.connect_one(None, user, is_stream=False) for user in (1, 2)]
        self.stamp = 0

    def connect_one(self, room: int | None, user: int | None, *, is_stream: bool = True) -> int:
        numbers = {harness.connect(send_buffer=room, is_stream=is_stream) for harness in self.harnesses}
        number = numbers.pop()
        assert not numbers
        for harness in self.harnesses:
            if user is not None:
                harness.set_party(number, user, cred=b"!/cred/1/2/%d" % number, blocks_others=user == 2)
        return number

    def both(self, client: int, packet: bytes, *, settles: bool = True) -> None:
        assert len({harness.send(client, packet) for harness in self.harnesses}) == 1
        for harness in self.harnesses if settles else ():
            harness.run()

    @initialize(target=streams, rooms=st.lists(st.sampled_from([None, 5_000, 40_000]), min_size=2, max_size=4))
    def connect_some(self, rooms: list[int | None]) -> MultipleResults[int]:
        return multiple(*(self.connect_subscriber(room, 1 + place % 2, [b"a", b"b"], []) for place, room in enumerate(rooms)))

    @rule(
        target=streams,
        room=st.sampled_from([None, 5_000, 40_000]),
        user=st.sampled_from([None, 1, 2]),
        patterns=st.lists(KEYS, max_size=2),
        changes=st.lists(SETTINGS, max_size=3),
    )
    def connect(self, room: int | None, user: int | None, patterns: list[bytes], changes: list[bytes]) -> int:
        return self.connect_subscriber(room, user, patterns, changes)

    def connect_subscriber(self, room: int | None, user: int | None, patterns: list[bytes], changes: list[bytes]) -> int:
        """Add a stream with these patterns and settings."""
        number = self.connect_one(room, user)
        for packet in (*(b"SUB " + each for each in patterns), *(b"CMSG " + each for each in changes)):
            self.both(number, packet)
        return number

    @rule(client=streams, change=SETTINGS)
    def change(self, client: int, change: bytes) -> None:
        self.both(client, b"CMSG " + change)

    @rule(place=st.integers(0, 1), key=KEYS, size=SIZES, count=st.integers(1, 6), settles=st.booleans())
    def publish(self, place: int, key: bytes, size: int, count: int, settles: bool) -> None:
        for _ in range(count):
            self.stamp += 1
            self.both(self.publishers[place], b"MSG %b\0%d %b" % (key, self.stamp, bytes(size)), settles=settles)
        for harness in self.harnesses:
            harness.run()

    @rule(key=KEYS, size=SIZES, uid=st.integers(1, 2))
    def announce(self, key: bytes, size: int, uid: int) -> None:
        for harness in self.harnesses:
            harness.switch.announce(b"MSG %b\0%b" % (key, bytes(size)), sight=Sight.OWN, uid=uid, payer=uid, cred=b"!/cred/0/0/9")
            harness.run()

    @rule(user=st.sampled_from([1, 2]), packets=st.integers(1, 12), size=st.sampled_from([100_000, 300_000, 3_000_000]))
    def limit_user(self, user: int, packets: int, size: int) -> None:
        for harness in self.harnesses:
            harness.set_user_limits(user, packets, size)

    @rule()
    def hand_over(self) -> None:
        self.compiled.hand_over()
        self.model.renew()
        for harness in self.harnesses:
            harness.run()

    @rule(client=streams, size=st.sampled_from([1, 3, 100, 5_000, 50_000, 300_000]))
    def read(self, client: int, size: int) -> None:
        received = []
        for harness in self.harnesses:
            packets: list[bytes] = []
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                packets = harness.frames[client].receive_part(size)
            received.append((timeless(packets), len(harness.frames[client].partial)))
            harness.run()
        assert received[0] == received[1]

    @rule(client=consumes(streams))
    def hang_up(self, client: int) -> None:
        for harness in self.harnesses:
            harness.hang_up(client)
            harness.run()

    @invariant()
    def counters_agree(self) -> None:
        reported = [by_connection(harness.events) for harness in self.harnesses]
        assert reported[0] == reported[1]
        counters = [harness.switch.counters()._asdict() for harness in self.harnesses]
        assert [name for name in counters[0] if counters[0][name] != counters[1][name] and name not in IGNORED] == []
        assert self.compiled.switch.connections() == self.model.connections()
        for number in self.model.connections():
            assert self.compiled.switch.connection_counters(number) == self.model.connection_counters(number)
        for user in (1, 2):
            assert self.compiled.switch.user_counters(user) == self.model.user_counters(user)
        for harness in self.harnesses:
            harness.check_balance()

    def teardown(self) -> None:
        for number in self.compiled.frames:
            if number in self.compiled.clients:
                received = [timeless(harness.drain(number)) for harness in self.harnesses]
                assert received[0] == received[1]
        self.counters_agree()
        for harness in self.harnesses:
            harness.close()


TestStreamsAndModel = StreamsAndModel.TestCase
TestStreamsAndModel.settings = settings(max_examples=examples(60), stateful_step_count=40)
