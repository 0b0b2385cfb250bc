"""Prints all messages of the stream "mail", and continues where it ended: python3 examples/durable_reader.py READER."""

import sys

from sbus import Bus, StoreGap

with Bus.connect() as bus:
    for item in bus.store.read("mail", reader=sys.argv[1], follow=False):
        print(item.seq, f"missing: {item.count}" if isinstance(item, StoreGap) else item.text, flush=True)
