"""Clients of a bus that publish sequence numbers to each other, and detect losses and interruptions. Needs only Python.

    python3 numbered_clients.py ADDRESS [--clients N] [--listeners N] [--interval SECONDS]

Every client publishes a number to numbered/<process>/<client> each *interval*, and subscribes to all clients of its process; a listener
subscribes only to silence/. No client reconnects. Standard input takes commands, one per line; the reply is a line of JSON on
standard output:

    report    the results so far
    mark      the same, and reset the longest silence
    end       stop publishing, wait for pending messages, print the results, and exit
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import sys
import time
from dataclasses import asdict, dataclass, field

PADDING = b"." * 80

KEYS = b"numbered/%d/" % os.getpid()

LOST = b"CMSG !/bus/lost\0"

END_SECONDS = 60.0
"""The timeout for pending messages at the end."""


@dataclass
class Findings:
    """The results of all clients together."""

    sent: int = 0
    received: int = 0
    announced: int = 0
    """The number of loss reports to all clients."""
    least_announced: int = 0
    """The smallest number of loss reports to any client."""
    missing: int = 0
    """Numbers that a client has not received."""
    unannounced: int = 0
    """Gaps without a loss report since the previous message of that publisher."""
    repeated: int = 0
    """Numbers that were not greater than the previous one: duplicates, or reordered."""
    ended: int = 0
    """Connections that the bus has closed."""
    errors: list[str] = field(default_factory=list)
    longest_silence: float = 0.0
    """The longest time in seconds without a message for a client."""


class NumberedClient:
    """A client, and the last number that it received from each publisher."""

    def __init__(self, name: int, address: str, clients: int) -> None:
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(address)
        self.sent = 0
        self.last_numbers = [0] * clients
        self.announced = 0
        self.announced_at = [0] * clients
        self.pings = 0
        self.last = time.monotonic()
        self.is_open = True


class NumberedClients:
    """All the clients."""

    def __init__(self, address: str, clients: int, listeners: int, interval: float) -> None:
        self.findings = Findings()
        self.interval = interval
        self.selector = selectors.DefaultSelector()
        self.clients = [NumberedClient(name, address, clients) for name in range(clients)]
        self.listeners = [NumberedClient(-1, address, 0) for _ in range(listeners)]
        for client in [*self.clients, *self.listeners]:
            client.socket.send(b"SUB " + (KEYS if client.name >= 0 else b"silence/"))
            self._await_ping(client)
            client.socket.setblocking(False)
            self.selector.register(client.socket, selectors.EVENT_READ, client)
        self.selector.register(sys.stdin, selectors.EVENT_READ, None)

    def run(self) -> None:
        """Publish and receive until the command ``end``."""
        next_round = time.monotonic()
        for client in self.clients:
            client.last = next_round
        while True:
            if time.monotonic() >= next_round:
                self._publish()
                next_round += self.interval
            word = self._wait(max(0.0, next_round - time.monotonic()))
            if word == "end":
                self._finish()
                self._report()
                return
            if word in ("report", "mark"):
                self._report()
            if word == "mark":
                self.findings.longest_silence = 0.0

    def _publish(self) -> None:
        """Publish the next number of each client; if the bus does not read, it is sent in a later round."""
        for client in self.clients:
            try:
                client.socket.send(b"MSG %b%d\0%d %b" % (KEYS, client.name, client.sent + 1, PADDING))
            except BlockingIOError:
                continue
            except OSError as error:
                self._note_failure(client, error)
                continue
            client.sent += 1
            self.findings.sent += 1

    def _wait(self, seconds: float) -> str:
        """Handle events for *seconds*, and return the command on standard input, if any."""
        word = ""
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                word = sys.stdin.readline().strip() or "end"
            else:
                self._read(key.data)
        return word

    def _read(self, client: NumberedClient) -> None:
        """Handle all packets that a client has received."""
        while client.is_open:
            try:
                packet = client.socket.recv(4096)
            except BlockingIOError:
                return
            except OSError as error:
                self._note_failure(client, error)
                return
            if not packet:
                self._note_failure(client, "the bus has closed the connection")
                return
            self._handle(client, packet)

    def _handle(self, client: NumberedClient, packet: bytes) -> None:
        """Record one packet."""
        if packet.startswith(b"MSG " + KEYS):
            head, _, payload = packet.partition(b"\0")
            self._note_message(client, int(head.rpartition(b"/")[2]), int(payload.split()[0]))
        elif packet.startswith(LOST):
            client.announced += 1
            self.findings.announced += 1
        elif packet.startswith(b"CMSG !/bus/ping\0"):
            client.pings += 1
        else:
            self.findings.errors.append(repr(packet[:200]))

    def _note_message(self, client: NumberedClient, publisher: int, number: int) -> None:
        """Record that a client has received *number* of *publisher*."""
        findings, now = self.findings, time.monotonic()
        findings.received += 1
        findings.longest_silence = max(findings.longest_silence, now - client.last)
        client.last = now
        if number <= client.last_numbers[publisher]:
            findings.repeated += 1
            return
        self._note_gap(client, publisher, number - client.last_numbers[publisher] - 1)
        client.last_numbers[publisher] = number
        client.announced_at[publisher] = client.announced

    def _note_gap(self, client: NumberedClient, publisher: int, missing: int) -> None:
        """Record *missing* lost numbers of *publisher*."""
        self.findings.missing += missing
        if missing and client.announced == client.announced_at[publisher]:
            self.findings.unannounced += 1

    def _finish(self) -> None:
        """Wait for pending messages: the first ping confirms that all are routed, the reply to the second follows all queued ones."""
        for count in (1, 2):
            for client in self.clients:
                client.socket.setblocking(True)
                client.socket.send(b"CMSG !/bus/ping\0%d" % count)
                client.socket.setblocking(False)
            end = time.monotonic() + END_SECONDS
            while any(client.is_open and client.pings < count for client in self.clients):
                if time.monotonic() > end:
                    self.findings.errors.append(f"no answer to a ping after {END_SECONDS} s")
                    return
                self._wait(0.1)
        for client in self.clients:
            for publisher in self.clients:
                self._note_gap(client, publisher.name, publisher.sent - client.last_numbers[publisher.name])

    def _note_failure(self, client: NumberedClient, error: object) -> None:
        """Record that a client has lost its connection."""
        if client.is_open:
            client.is_open = False
            self.selector.unregister(client.socket)
            self.findings.ended += 1
            self.findings.errors.append(f"client {client.name}: {error}")

    def _report(self) -> None:
        """Print the results."""
        self.findings.least_announced = min(client.announced for client in [*self.clients, *self.listeners])
        print(json.dumps(asdict(self.findings)), flush=True)

    def _await_ping(self, client: NumberedClient) -> None:
        """Wait until the bus has handled all packets of a new client."""
        client.socket.send(b"CMSG !/bus/ping\0ready")
        while not client.socket.recv(4096).startswith(b"CMSG !/bus/ping\0"):
            pass


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--listeners", type=int, default=0)
    parser.add_argument("--interval", type=float, default=0.02)
    options = parser.parse_args()
    clients = NumberedClients(options.address, options.clients, options.listeners, options.interval)
    print("ready", flush=True)
    clients.run()


if __name__ == "__main__":
    main()
