"""Gives each line of standard input to the worker that asks for it next: ls | python3 examples/pull_jobs.py (then pull_worker.py)."""

import sys

from sbus import Bus, Request

with Bus.connect() as bus:

    @bus.service("jobs/next")
    def next_job(_request: Request) -> str:
        """Return the next line; at the end, return nothing and stop."""
        if not (line := sys.stdin.readline()):
            bus.stop_serving()
        return line

    bus.serve(ready=lambda: print("ready", flush=True))
