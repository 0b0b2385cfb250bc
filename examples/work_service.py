"""A worker: python3 examples/work_service.py. Start as many as you like; work_dispatch.py gives them jobs."""

import hashlib

from sbusd.client import Bus, Request

with Bus.connect() as bus:

    @bus.service("jobs/sha256")
    def digest(request: Request) -> str:
        """Return the SHA-256 of the job's data."""
        return hashlib.sha256(request.data).hexdigest()

    bus.serve(ready=lambda: print("ready", flush=True))
