"""Print the first blob under $1: its size, the user who has created it, and the sum of its bytes. It prints "ready" before."""

import sys

from sbus import BlobMessage, Bus

with Bus.connect() as bus, bus.subscribe(sys.argv[1], blobs=True) as blobs:
    print("ready", flush=True)
    for message in blobs:
        assert isinstance(message, BlobMessage)
        print(len(message.blob), message.owner.uid, sum(message.blob), flush=True)
        break
