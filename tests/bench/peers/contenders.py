"""Who takes part, and in what: every contender, over the C load or as programs in Python, and the rows of the table."""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench.peers.daemons import DBUS_BROKER, DBUS_DAEMON, MOSQUITTO, NATS, PROXY, REDIS, SBUSD, Daemon
from tests.bench.peers.loading import Traffic


@dataclass(frozen=True, slots=True)
class Contender:
    """A daemon, and how it is used: the protocol of the C load, or the module of the Python client; *package* is what that needs."""

    name: str
    daemon: Daemon
    way: str
    package: str = ""


OVER_C = (
    Contender("sbusd", SBUSD, "sbus"),
    Contender("sbusd+batch", SBUSD, "sbus-batch"),
    Contender("dbus-daemon", DBUS_DAEMON, "dbus"),
    Contender("dbus-broker", DBUS_BROKER, "dbus"),
    Contender("Redis", REDIS, "redis"),
    Contender("NATS", NATS, "nats"),
    Contender("Mosquitto", MOSQUITTO, "mqtt"),
)

IN_PYTHON = (
    Contender("sbusd Bus", SBUSD, "sbus"),
    Contender("sbusd Bus, lists", SBUSD, "sbus:together"),
    Contender("sbusd AsyncBus", SBUSD, "sbus_aio"),
    Contender("sbusd AsyncBus, lists", SBUSD, "sbus_aio:together"),
    Contender("sbus, a plain socket", SBUSD, "plain_socket"),
    Contender("redis-py", REDIS, "redis_py", "redis"),
    Contender("redis-py, pipelined", REDIS, "redis_py:pipeline", "redis"),
    Contender("nats-py", NATS, "nats_py", "nats-py"),
    Contender("dbus-fast, dbus-daemon", DBUS_DAEMON, "dbus_fast_signals", "dbus-fast"),
    Contender("dbus-fast, dbus-broker", DBUS_BROKER, "dbus_fast_signals", "dbus-fast"),
    Contender("paho-mqtt", MOSQUITTO, "paho_mqtt", "paho-mqtt"),
    Contender("pyzmq, by a proxy", PROXY, "zeromq", "pyzmq"),
)

PUMPS = {
    "1:1": Traffic(),
    "1:1x64": Traffic(group=64, window=512),
    "1:8": Traffic(receivers=8),
    "1:8x64": Traffic(receivers=8, group=64, window=512),
    "1:64": Traffic(receivers=64),
    "1:64x64": Traffic(receivers=64, group=64, window=512),
    "1KiB": Traffic(payload=1 << 10, window=64),
    "64KiB": Traffic(payload=1 << 16, window=16),
}
"""Throughput over C. The windows are what a Unix socket of the default size holds of small packets; 64 KiB packets fill it with three,
and the rest of the window is the daemons' to keep."""

LEGEND = """\
1:8 is one publisher and eight subscribers; x64: 64 messages leave with one system call, else each by itself;
1KiB and 64KiB are payloads at 1:1, all others have 64 bytes"""

TRIP = "1:1"
"""The row in which round trips are measured too."""
PYTHON = "from a Python program to another, 64 B"
"""The row of the Python clients."""
