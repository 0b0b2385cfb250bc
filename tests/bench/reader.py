"""A Python subscriber that reads lists of messages with ``batches()``: ``python -m tests.bench.reader PATH PATTERN COUNT``.

It prints ``ready`` when its subscription is in force, and what it got of *COUNT* messages, as JSON, when those are there or told as lost.
"""

from __future__ import annotations

import json
import sys

from sbus import Bus, Gap, Message


def main(path: str, pattern: str, count: int) -> None:
    """Read until COUNT messages have been received or reported as lost."""
    received = lost = 0
    with Bus.connect(path) as bus, bus.subscribe(pattern) as subscription:
        bus.ping()
        print("ready", flush=True)
        for items in subscription.batches():
            for item in items:
                if type(item) is Message:
                    received += 1
                elif isinstance(item, Gap):
                    lost += item.lost
            if received + lost >= count:
                break
    print(json.dumps({"received": received, "lost": lost}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
