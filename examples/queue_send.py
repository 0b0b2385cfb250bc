"""Sends each line of standard input to one worker: ls | python3 examples/queue_send.py (start queue_worker.py first)."""

import sys

from sbus import Bus

with Bus.connect() as bus:
    for line in sys.stdin:
        if not bus.publish("jobs/new", line.rstrip("\n"), receipt=True, wait=True):
            sys.exit("queue_send: no worker is running: start queue_worker.py first")
