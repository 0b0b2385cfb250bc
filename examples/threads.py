"""Four threads share one connection and the messages of one subscription: python3 examples/threads.py

Try it with: sbusctl sub sha256/ & sbusctl pub hash/greeting hello
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor

from sbus import Bus, Subscription


def work(bus: Bus, messages: Subscription) -> None:
    """Publish the SHA-256 of each message."""
    for message in messages:
        bus.publish("sha256/" + message.key.removeprefix("hash/"), hashlib.sha256(message.payload).hexdigest())


with ThreadPoolExecutor(4) as pool, Bus.connect() as bus, bus.subscribe("hash/") as messages:
    print("ready", flush=True)
    for done in [pool.submit(work, bus, messages) for _ in range(4)]:
        done.result()
