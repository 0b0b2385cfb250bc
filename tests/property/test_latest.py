"""The order ``latest`` beside a plain model, a dictionary: what is published, read and replaced in any sequence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbusd.dataplane.contract import UserCounters
from tests.support.wire import message
from tests.support.world import World

REPLACED = b"CMSG !/bus/replaced\0"
SMALL_BUFFER = 5_000
KEYS = st.sampled_from([b"a", b"b", b"a/b", b"ab", b"c" * 60])
STEPS = st.lists(st.one_of(st.tuples(KEYS, st.integers(0, 1_500)), st.integers(1, 30)), max_size=60)
"""To publish with a key and so many bytes, or to read so many packets."""


class Model:
    """What the kernel's buffer holds, which nobody can change, and what waits behind it: the newest of each key, in the keys' places."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, bytes] = {}
        self.replaced = 0

    def hold(self, key: bytes, packet: bytes) -> None:
        """Let a message wait."""
        self.replaced += key in self.waiting
        self.waiting[key] = packet

    def shrink(self, count: int) -> list[bytes]:
        """Let the oldest go until *count* are left, and return them."""
        oldest = list(self.waiting)[: len(self.waiting) - count]
        return [self.waiting.pop(key) for key in oldest]


@given(steps=STEPS)
def test_what_is_read_is_what_a_dictionary_holds(steps: list[tuple[bytes, int] | int]) -> None:
    world, model = World(), Model()
    reader, sender = world.connect(b"", send_buffer=SMALL_BUFFER), world.connect()
    world.set_party(reader, 1, cred=b"!/cred/1/2/3")
    world.send(reader, b"CMSG order/latest")
    world.run()
    sent: list[bytes] = []
    received: list[bytes] = []
    try:
        for number, step in enumerate(steps):
            if isinstance(step, int):
                received += world.receive(reader, step)
                world.run()
            else:
                key, size = step
                packet = message(key, b"%d " % number + bytes(size))
                assert world.send(sender, packet)
                world.run()
                if world.switch.connection_counters(reader).queued_packets:
                    model.hold(key, packet)
                else:
                    sent.append(packet)
            sent += model.shrink(world.switch.connection_counters(reader).queued_packets)
            assert world.switch.connection_counters(reader).replaced_packets == model.replaced
        received += world.drain(reader)
        sent += model.shrink(0)
        notices = [packet for packet in received if packet.startswith(REPLACED)]
        assert [packet for packet in received if not packet.startswith(REPLACED)] == sent
        assert sum(int(packet.removeprefix(REPLACED)) for packet in notices) == model.replaced
        assert world.switch.connection_counters(reader).lost_packets == 0
        assert world.switch.user_counters(1) == UserCounters(0, 0, 0)
        world.check_balance()
    finally:
        world.close()
