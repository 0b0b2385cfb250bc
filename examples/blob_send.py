"""Publishes 50 MB, or the file FILE: python3 examples/blob_send.py [FILE]. blob_receive.py receives it. Both need sbus-blob."""

import sys
from pathlib import Path

from sbus import Bus

with Bus.connect() as bus:
    data = Path(sys.argv[1]) if sys.argv[1:] else bytes(50_000_000)
    print(bus.publish_blob("large/data", data, keep=True))
