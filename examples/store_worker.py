"""Does jobs of the queue "mail" of sbus-store: python3 examples/store_worker.py. If it is killed, another worker gets its job at once."""

import hashlib

from sbus import Bus

with Bus.connect(reconnect=True) as bus:
    for job in bus.store.jobs("mail"):
        print(job.message.text, hashlib.sha256(job.payload).hexdigest(), sep="\t", flush=True)
