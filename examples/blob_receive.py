"""Receives blobs and prints their sizes: python3 examples/blob_receive.py. The content is mapped, not copied."""

from sbus import Bus

with Bus.connect() as bus, bus.subscribe("large/", blobs=True) as messages:
    print("ready", flush=True)
    for message in messages:
        if message.blob is not None:
            print(message.key, len(message.blob), "bytes", message.blob[:4].hex(), flush=True)
