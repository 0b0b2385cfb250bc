"""The order ``latest`` through the clients: a slow reader receives the newest message of each key, and is notified of the replaced ones."""

from __future__ import annotations

from sbus import Bus, Message, Replaced
from tests.support.daemons import Daemon

COUNT = 3_000
KEYS = 3


def publish_all(path: str) -> None:
    """Publish :data:`COUNT` messages on so few keys, more than a socket holds."""
    with Bus.connect(path) as publisher:
        for number in range(COUNT):
            publisher.publish(f"t/{number % KEYS}", b"%d " % number + bytes(1_000))
        publisher.ping()


def test_a_slow_reader_gets_the_newest_message_of_each_key_and_the_number_of_replaced_ones(bus: Daemon) -> None:
    path = str(bus.path)
    with Bus.connect(path) as client, client.subscribe("t") as wide, client.subscribe("t/*") as subscription:
        client.tell("order/latest")
        client.ping()
        publish_all(path)
        last: dict[str, int] = {}
        received = replaced = 0
        while received + replaced < COUNT:
            item = subscription.receive(60)
            if isinstance(item, Replaced):
                replaced += item.count
                continue
            assert isinstance(item, Message)
            number = int(item.payload.split(b" ")[0])
            assert last.get(item.key, -1) < number
            last[item.key] = number
            received += 1
        assert received + replaced == COUNT
        assert replaced > 0
        assert sorted(last.values()) == [COUNT - 3, COUNT - 2, COUNT - 1]
        assert (client.statistics.replaced, client.statistics.lost_remote) == (replaced, 0)
        assert wide.receive(60) == Replaced(replaced)
