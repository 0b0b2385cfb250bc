"""The order ``fair`` over any sequence of publications, reads, changes of the order and restarts: order, place and number of losses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import Order
from tests.support.switch_harness import SwitchHarness
from tests.support.wire import message

LOST = b"CMSG !/bus/lost\0"
PUBLISH = st.tuples(st.sampled_from([1, 2, 2, 3]), st.integers(1, 40))
STEPS = st.lists(st.one_of(PUBLISH, st.integers(1, 60), st.sampled_from([Order.QUEUE, Order.FAIR, Order.FAIR, None])), max_size=40)
"""A step publishes messages of a user, reads a number of packets, sets the order, or hands over."""


@given(steps=STEPS)
def test_no_message_comes_before_the_notice_of_older_ones_of_its_user(steps: list[tuple[int, int] | int | Order | None]) -> None:
    harness = SwitchHarness(LimitSettings(queue_packets=60))
    reader = harness.connect(b"", send_buffer=5_000)
    harness.set_party(reader, 1)
    harness.configure(reader, order=Order.FAIR)
    senders = {uid: harness.connect() for uid in (1, 2, 3)}
    published = dict.fromkeys(senders, 0)
    received: list[bytes] = []
    try:
        for uid, sender in senders.items():
            harness.set_party(sender, uid)
        for step in steps:
            if isinstance(step, tuple):
                for _ in range(step[1]):
                    assert harness.send(senders[step[0]], message(b"%d" % step[0], b"%d " % published[step[0]] + bytes(300)))
                    published[step[0]] += 1
                    harness.run()
            elif isinstance(step, Order):
                harness.configure(reader, order=step)
            elif step is None:
                harness.hand_over()
            else:
                received += harness.receive(reader, step)
                harness.run()
        received += harness.drain(reader)
        reported, lost = 0, dict.fromkeys(senders, 0)
        expected = dict.fromkeys(senders, 0)
        for packet in received:
            if packet.startswith(LOST):
                reported += int(packet.removeprefix(LOST))
                continue
            uid, number = int(packet[4:5]), int(packet.partition(b"\0")[2].split(b" ")[0])
            lost[uid] += number - expected[uid]
            assert number >= expected[uid], "the order of a publisher is kept"
            assert reported >= lost[uid], "the notice comes before what was published after the gap"
            expected[uid] = number + 1
        assert reported == sum(published.values()) - sum(not packet.startswith(LOST) for packet in received)
        assert harness.switch.connection_counters(reader).lost_packets == reported
        harness.check_balance()
    finally:
        harness.close()
