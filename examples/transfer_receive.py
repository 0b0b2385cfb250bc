"""Receives a file from transfer_send.py: python3 examples/transfer_receive.py FILE

It ends when the file is complete, and fails if a message was lost.
"""

import sys
from pathlib import Path

from sbusd.client import Bus


def fail(item: object) -> None:
    """End this program, because messages are missing."""
    sys.exit(f"transfer_receive: messages were lost: {item}")


with Bus.connect() as bus, bus.subscribe("transfer/", on_gap=fail) as transfer, Path(sys.argv[1]).open("wb") as file:
    print("ready", flush=True)
    for message in transfer:
        if message.key == b"transfer/data":
            file.write(message.payload)
        elif message.key == b"transfer/end":
            if file.tell() != int(message.payload):
                sys.exit(f"transfer_receive: received {file.tell()} of {int(message.payload)} bytes")
            print(f"received {file.tell()} bytes")
            break
