"""Stores each line of standard input as a job: ls | python3 examples/store_send.py (sbus-store needs the stream and queue "mail")."""

import sys

from sbus import Bus

with Bus.connect() as bus:
    for line in sys.stdin:
        bus.store.put("mail/new", line.rstrip("\n"))  # it is on disk when put returns
