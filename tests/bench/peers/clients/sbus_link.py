"""sbus's ``Bus`` on two linked hosts: what one publishes appears on the other below ``host/alpha/``."""

from __future__ import annotations

from sbus import Bus, Message
from tests.bench.peers.clients import sbus
from tests.bench.peers.clients.run import Tally

KEY = b"host/alpha/" + sbus.KEY
SYNC_SECONDS = 30.0

publish = sbus.publish
publish_together = sbus.publish_together


def receive(address: str, tally: Tally) -> None:
    """Iterate; a gap is not a message, so its messages count as missing."""
    with Bus.connect(address) as bus, bus.subscribe(KEY) as subscription:
        bus.call("link/sync", timeout=SYNC_SECONDS)
        tally.ready()
        for message in subscription:
            tally.take(message.payload)


def receive_together(address: str, tally: Tally) -> None:
    """Iterate over lists of what is there."""
    with Bus.connect(address) as bus, bus.subscribe(KEY) as subscription:
        bus.call("link/sync", timeout=SYNC_SECONDS)
        tally.ready()
        for items in subscription.batches():
            for item in items:
                if isinstance(item, Message):
                    tally.take(item.payload)
