"""How fast a bus takes connections. Needs Python alone.

python3 pace.py activation ROUNDS    as root: the seconds from the connect that starts the system's bus to its first answer
python3 pace.py connects NUMBER PID  as root: the µs of NUMBER connections, all kept, each: from connect to reply, and those for which
                                     the bus, process PID, and systemd used a processor

Writes one line of JSON.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

ADDRESS = "/run/sbus.socket"


def connect() -> socket.socket:
    """Return a connection that the bus has answered."""
    bus = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    bus.connect(ADDRESS)
    bus.send(b"CMSG !/bus/ping\0x")
    assert bus.recv(1000) == b"CMSG !/bus/ping\0x"
    return bus


def activation(rounds: int) -> list[float]:
    """Return how long each round took."""
    taken = []
    for _ in range(rounds):
        # What is restarted keeps its connections; what was stopped starts with the next connect.
        subprocess.run(["systemctl", "stop", "sbus.service"], check=True, capture_output=True)
        begin = time.perf_counter()
        connect().close()
        taken.append(round(time.perf_counter() - begin, 4))
    return taken


def connects(number: int, bus: int) -> dict[str, float]:
    """Return what a connection takes, in µs."""
    connect().close()
    used = {"bus": used_ns(bus), "systemd": used_ns(1)}
    begin = time.perf_counter_ns()
    kept = [connect() for _ in range(number)]
    taken = {"to the answer": time.perf_counter_ns() - begin, "bus": used_ns(bus) - used["bus"], "systemd": used_ns(1) - used["systemd"]}
    for each in kept:
        each.close()
    return {what: round(ns / number / 1000, 1) for what, ns in taken.items()}


def used_ns(pid: int) -> int:
    """Return for how long a process has used a processor; Documentation/scheduler/sched-stats.rst."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0])


def main() -> None:
    """Run the program."""
    _, what, *numbers = sys.argv
    print(json.dumps(activation(int(numbers[0])) if what == "activation" else connects(int(numbers[0]), int(numbers[1]))))


if __name__ == "__main__":
    main()
