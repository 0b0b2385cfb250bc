"""Offers a file to one user: python3 examples/transfer_send.py FILE USER. It ends when transfer_receive.py has received all of it."""

import sys
from pathlib import Path

from sbus import Allow, Bus, Request

with Bus.connect() as bus, Path(sys.argv[1]).open("rb") as file:

    @bus.service("transfer/read", allow=Allow(users=(sys.argv[2],)))
    def read(request: Request) -> bytes:
        """Return the bytes that follow an offset; at the end, return nothing and stop."""
        file.seek(int(request.data))
        if not (chunk := file.read(256 * 1024)):
            bus.stop_serving()
        return chunk

    bus.serve(ready=lambda: print("ready", flush=True))
