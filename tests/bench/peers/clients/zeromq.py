"""pyzmq through ZeroMQ's proxy, with unbounded queues: bounded ones drop, and say nothing."""

from __future__ import annotations

import time
from typing import Any

import zmq

from tests.bench.peers.clients.run import END, END_SECONDS, Supply, Tally, Trips

_TOPIC = b"bench/load"


def _socket(kind: int, address: str) -> Any:
    """Connect a socket."""
    made = zmq.Context.instance().socket(kind)
    made.set(zmq.SNDHWM, 0)
    made.set(zmq.RCVHWM, 0)
    made.connect(f"ipc://{address}")
    return made


def _source(address: str) -> Any:
    """Connect a publisher and wait until it knows the subscription: before that it discards messages."""
    made = _socket(zmq.XPUB, f"{address}.in")
    made.recv()
    return made


def _drain(address: str) -> Any:
    """Connect a subscriber."""
    made = _socket(zmq.SUB, f"{address}.out")
    made.set(zmq.SUBSCRIBE, _TOPIC)
    return made


def publish(address: str, supply: Supply) -> None:
    """Send each message by itself; the library's thread gathers what it writes."""
    source = _source(address)
    for payload in supply:
        source.send_multipart((_TOPIC, payload))
    supply.finish()
    while True:
        source.send_multipart((_TOPIC, END))
        time.sleep(END_SECONDS)


def receive(address: str, tally: Tally) -> None:
    """Take each message."""
    drain = _drain(address)
    tally.ready()  # the publisher waits by itself until the subscription has come to it
    while True:
        tally.take(drain.recv_multipart()[1])


def trip(address: str, trips: Trips) -> None:
    """From one socket to another."""
    drain = _drain(address)
    source = _source(address)
    for payload in trips:
        source.send_multipart((_TOPIC, payload))
        drain.recv_multipart()
