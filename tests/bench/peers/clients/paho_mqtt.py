"""paho-mqtt over a Unix socket, quality of service 0."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from paho.mqtt import client as mqtt

from tests.bench.peers.clients.run import END, END_SECONDS, Supply, Tally, Trips

TOPIC = "bench/load"
_WAITING = 1_000
"""Messages that wait in the library, which has no bound of its own, before a publisher waits for the last of them."""


def _connect(address: str, take: Any = None) -> mqtt.Client:
    """Connect, and subscribe if *take* is to have the messages; the library's own thread reads and writes."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, transport="unix")
    granted = threading.Event()
    client.on_connect = lambda *_: granted.set()
    client.connect(address)
    client.loop_start()
    granted.wait()
    if take is not None:
        granted.clear()
        client.on_subscribe = lambda *_: granted.set()
        client.on_message = lambda _client, _data, message: take(message.payload)
        client.subscribe(TOPIC)
        granted.wait()
    return client


def publish(address: str, supply: Supply) -> None:
    """Publish each message by itself."""
    client = _connect(address)
    for number, payload in enumerate(supply):
        written = client.publish(TOPIC, payload)
        if number % _WAITING == 0:
            written.wait_for_publish()
    written.wait_for_publish()
    supply.finish()
    while True:
        client.publish(TOPIC, END)
        time.sleep(END_SECONDS)


def receive(address: str, tally: Tally) -> None:
    """Take messages in a callback."""
    _connect(address, tally.take)
    tally.ready()
    threading.Event().wait()  # the library's thread ends the program


def trip(address: str, trips: Trips) -> None:
    """From one connection to another."""
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    source = _connect(address)
    _connect(address, messages.put)
    for payload in trips:
        source.publish(TOPIC, payload)
        messages.get()
