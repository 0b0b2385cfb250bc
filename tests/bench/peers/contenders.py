"""Who takes part, and in what: every contender, over the C load or as programs in Python, and the rows of the table."""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench.peers.daemons import DBUS_BROKER, DBUS_DAEMON, MOSQUITTO, NATS, PROXY, REDIS, SBUSD, Daemon
from tests.bench.peers.loading import Traffic, Work
from tests.bench.peers.packages import has_node, node_version, python_version


@dataclass(frozen=True, slots=True)
class Contender:
    """A daemon, and how it is used: the protocol of the C load, or the module of a program, which may need a package.

    *package* is a Python package, and *node_package* one of Node.
    """

    name: str
    daemon: Daemon
    way: str
    package: str = ""
    node_package: str = ""

    def versions(self) -> dict[str, str | None]:
        """Return the versions of the packages that it needs; None of those that are not installed."""
        found = {self.package: python_version(self.package)} if self.package else {}
        return found | ({f"{self.node_package} for Node": node_version(self.node_package)} if self.node_package else {})

    def missing(self) -> str:
        """Return which program or package is missing, and how to install it; empty if none is."""
        if self in IN_NODE and not has_node():
            return "node is not installed: tools/prepare bench"
        return next((f"{name} is not installed: make bench-peers" for name, version in self.versions().items() if version is None), "")


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
    Contender("sbusd Bus, gather", SBUSD, "sbus:gather"),
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

IN_NODE = (
    Contender("sbusd Node", SBUSD, "sbus"),
    Contender("sbusd Node, lists", SBUSD, "sbus:lists"),
    Contender("nats for Node", NATS, "nats", node_package="nats"),
    Contender("nats for Node, callback", NATS, "nats:callback", node_package="nats"),
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

NODE_WORK = {
    "from a Node program to another, 64 B": Work(),
    "Node, 64 B, each by itself": Work(group=1),
    "Node, 64 B, 64 and a flush": Work(group=64),
    "Node, 4 KiB": Work(payload=4096),
    "Node, 4 KiB, 64 and a flush": Work(payload=4096, group=64),
    "Node, one call at a time": Work(group=1, is_calls=True),
    "Node, 64 calls at a time": Work(group=64, is_calls=True),
}
"""The rows of the Node clients. Unless the name says otherwise, messages are published in a loop, with as few waits for the daemon as the
library allows."""

NODE_TRIP = next(iter(NODE_WORK))
"""The row of the Node clients in which round trips are measured too."""


def in_node(work: Work) -> tuple[Contender, ...]:
    """Return the contenders in Node that differ in some work: calls do not depend on how messages are received."""
    return tuple(each for each in IN_NODE if not work.is_calls or ":" not in each.way)
