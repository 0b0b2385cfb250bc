"""Sends a file over the bus as fast as the receiver reads: python3 examples/transfer_send.py FILE

Start transfer_receive.py first. With pace=True the bus blocks this publisher while the receiver's queue is full, up to the limits of
sbusd.toml(5), block_timeout and pace_limit. A receiver that is slower than that loses messages, and is notified.
"""

import sys
from pathlib import Path

from sbusd.client import Bus

CHUNK_BYTES = 64 * 1024

path = Path(sys.argv[1])
with Bus.connect(pace=True) as bus, path.open("rb") as file:
    if not bus.publish("transfer/begin", path.name, receipt=True):
        sys.exit("transfer_send: no receiver: start transfer_receive.py first")
    while chunk := file.read(CHUNK_BYTES):
        bus.publish("transfer/data", chunk)
    bus.publish("transfer/end", str(path.stat().st_size))
    bus.ping()  # returns when the bus has routed everything
