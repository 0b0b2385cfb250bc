"""The order ``latest`` compared with a plain model, a dictionary, over any sequence of publications and reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbusd.dataplane.counters import UserCounters
from tests.support.switch_harness import SwitchHarness
from tests.support.wire import message

REPLACED = b"CMSG !/bus/replaced\0"
SMALL_BUFFER = 5_000
KEYS = st.sampled_from([b"a", b"b", b"a/b", b"ab", b"c" * 60])
STEPS = st.lists(st.one_of(st.tuples(KEYS, st.integers(0, 1_500)), st.integers(1, 30)), max_size=60)
"""A step publishes a key with a number of bytes, or reads a number of packets."""


class Model:
    """The content of the kernel's buffer, which is final, and of the queue: the newest message of each key, in the order of keys."""

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
def test_read_messages_equal_a_dictionary(steps: list[tuple[bytes, int] | int]) -> None:
    harness, model = SwitchHarness(), Model()
    reader, sender = harness.connect(b"", send_buffer=SMALL_BUFFER), harness.connect()
    harness.set_party(reader, 1, cred=b"!/cred/1/2/3")
    harness.send(reader, b"CMSG order/latest")
    harness.run()
    sent: list[bytes] = []
    received: list[bytes] = []
    try:
        for number, step in enumerate(steps):
            if isinstance(step, int):
                received += harness.receive(reader, step)
                harness.run()
            else:
                key, size = step
                packet = message(key, b"%d " % number + bytes(size))
                assert harness.send(sender, packet)
                harness.run()
                if harness.switch.connection_counters(reader).queued_packets:
                    model.hold(key, packet)
                else:
                    sent.append(packet)
            sent += model.shrink(harness.switch.connection_counters(reader).queued_packets)
            assert harness.switch.connection_counters(reader).replaced_packets == model.replaced
        received += harness.drain(reader)
        sent += model.shrink(0)
        notices = [packet for packet in received if packet.startswith(REPLACED)]
        assert [packet for packet in received if not packet.startswith(REPLACED)] == sent
        assert sum(int(packet.removeprefix(REPLACED)) for packet in notices) == model.replaced
        assert harness.switch.connection_counters(reader).lost_packets == 0
        assert harness.switch.user_counters(1) == UserCounters(0, 0, 0)
        harness.check_balance()
    finally:
        harness.close()
