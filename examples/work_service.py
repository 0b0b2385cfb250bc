"""A worker: python3 examples/work_service.py. Start as many as you like; work_dispatch.py gives them jobs."""

import hashlib

from sbus import Bus

with Bus.connect() as bus:
    bus.service("task/sha256")(lambda request: hashlib.sha256(request.data).hexdigest())
    bus.serve(ready=lambda: print("ready", flush=True))
