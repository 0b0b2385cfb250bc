"""A worker of a queue group: python3 examples/queue_worker.py. Start as many as you like; queue_send.py sends the jobs."""

import hashlib

from sbus import Bus

with Bus.connect(reconnect=True) as bus, bus.subscribe("jobs/", group="workers") as jobs:
    print("ready", flush=True)
    for job in jobs:
        print(job.text, hashlib.sha256(job.payload).hexdigest(), sep="\t", flush=True)
