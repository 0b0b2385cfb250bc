"""Receives a file from transfer_send.py: python3 examples/transfer_receive.py FILE

It ends when the file is complete, and fails if a message was lost.
"""

import sys
from pathlib import Path

from sbusd.client import Bus, Message

with Bus.connect() as bus, bus.subscribe("transfer/") as transfer, Path(sys.argv[1]).open("wb") as file:
    print("ready", flush=True)
    for item in transfer:
        if not isinstance(item, Message):
            sys.exit(f"transfer_receive: messages were lost: {item}")
        if item.key == b"transfer/data":
            file.write(item.payload)
        elif item.key == b"transfer/end":
            if file.tell() != int(item.payload):
                sys.exit(f"transfer_receive: received {file.tell()} of {int(item.payload)} bytes")
            print(f"received {file.tell()} bytes")
            break
