"""Processes of a pool share one Bus object: python3 examples/processes.py FILE...

A connection stays with the process that made it. With reconnect=True, each process of the pool makes its own when it first uses the bus.
"""

import hashlib
import multiprocessing
import sys
from pathlib import Path

from sbus import Bus


def digest(name: str) -> None:
    """Publish the SHA-256 of a file."""
    bus.publish("sha256/file", f"{hashlib.sha256(Path(name).read_bytes()).hexdigest()}  {name}")


bus = Bus.connect(reconnect=True)
with bus, bus.subscribe("sha256/file") as digests, multiprocessing.get_context("fork").Pool(4) as pool:
    pool.map(digest, sys.argv[1:])
    for _, message in zip(sys.argv[1:], digests, strict=False):
        print(message.text)
