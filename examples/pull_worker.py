"""A worker that asks for jobs until none is left: python3 examples/pull_worker.py. Start as many as you like, after pull_jobs.py."""

import hashlib
from contextlib import suppress

from sbus import Bus, NoRecipient, PeerDisconnected

with Bus.connect() as bus, suppress(NoRecipient, PeerDisconnected):
    while line := bus.call("jobs/next", timeout=None):
        print(line.decode().rstrip("\n"), hashlib.sha256(line.rstrip(b"\n")).hexdigest(), sep="\t", flush=True)
