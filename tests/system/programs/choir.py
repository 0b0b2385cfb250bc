"""Clients of a bus that publish with sequence numbers, hear each other, and notice whatever goes wrong. Needs Python alone.

    python3 choir.py ADDRESS [--voices N] [--listeners N] [--interval SECONDS]

Every voice publishes a number under choir/<process>/<voice> each *interval*, and hears all voices of its process; a listener only
hears silence/. None of them ever connects a second time. Standard input takes words, a line each, which are answered by a line of JSON
on standard output:

    report    what has happened so far
    mark      the same, and the longest silence is counted anew
    end       the voices stop, what is on its way arrives, then the same; and the program ends
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

KEYS = b"choir/%d/" % os.getpid()

LOST = b"CMSG !/bus/lost\0"

END_SECONDS = 60.0
"""Until when all that is on its way must have arrived at the end."""


@dataclass
class Findings:
    """What has happened to all voices together."""

    sent: int = 0
    received: int = 0
    announced: int = 0
    """How often any client was told of a loss."""
    least_announced: int = 0
    """How often the client was told that was told least often."""
    missing: int = 0
    """Numbers that a voice has not heard."""
    unannounced: int = 0
    """Gaps before which the voice was told of no loss since it last heard that publisher."""
    repeated: int = 0
    """Numbers that were not greater than one before: duplicates, or in disorder."""
    ended: int = 0
    """Connections that the bus has closed."""
    errors: list[str] = field(default_factory=list)
    longest_silence: float = 0.0
    """Seconds for which a voice has heard nothing."""


class Voice:
    """A client, and the last number that it heard from each publisher."""

    def __init__(self, name: int, address: str, voices: int) -> None:
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(address)
        self.sent = 0
        self.heard = [0] * voices
        self.announced = 0
        self.announced_at = [0] * voices
        self.pings = 0
        self.last = time.monotonic()
        self.is_open = True


class Choir:
    """All the clients."""

    def __init__(self, address: str, voices: int, listeners: int, interval: float) -> None:
        self.findings = Findings()
        self.interval = interval
        self.selector = selectors.DefaultSelector()
        self.voices = [Voice(name, address, voices) for name in range(voices)]
        self.listeners = [Voice(-1, address, 0) for _ in range(listeners)]
        for voice in [*self.voices, *self.listeners]:
            voice.socket.send(b"SUB " + (KEYS if voice.name >= 0 else b"silence/"))
            self._await_ping(voice)
            voice.socket.setblocking(False)
            self.selector.register(voice.socket, selectors.EVENT_READ, voice)
        self.selector.register(sys.stdin, selectors.EVENT_READ, None)

    def run(self) -> None:
        """Sing until the word to end."""
        next_round = time.monotonic()
        for voice in self.voices:
            voice.last = next_round
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
        """Let each voice send its next number; one whose bus does not read sends it in a later round."""
        for voice in self.voices:
            try:
                voice.socket.send(b"MSG %b%d\0%d %b" % (KEYS, voice.name, voice.sent + 1, PADDING))
            except BlockingIOError:
                continue
            except OSError as error:
                self._complain(voice, error)
                continue
            voice.sent += 1
            self.findings.sent += 1

    def _wait(self, seconds: float) -> str:
        """Handle what arrives within *seconds*, and return the word that standard input has, if any."""
        word = ""
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                word = sys.stdin.readline().strip() or "end"
            else:
                self._read(key.data)
        return word

    def _read(self, voice: Voice) -> None:
        """Handle all that has arrived for a voice."""
        while voice.is_open:
            try:
                packet = voice.socket.recv(4096)
            except BlockingIOError:
                return
            except OSError as error:
                self._complain(voice, error)
                return
            if not packet:
                self._complain(voice, "the bus has closed the connection")
                return
            self._handle(voice, packet)

    def _handle(self, voice: Voice, packet: bytes) -> None:
        """Take note of one packet."""
        if packet.startswith(b"MSG " + KEYS):
            head, _, payload = packet.partition(b"\0")
            self._hear(voice, int(head.rpartition(b"/")[2]), int(payload.split()[0]))
        elif packet.startswith(LOST):
            voice.announced += 1
            self.findings.announced += 1
        elif packet.startswith(b"CMSG !/bus/ping\0"):
            voice.pings += 1
        else:
            self.findings.errors.append(repr(packet[:200]))

    def _hear(self, voice: Voice, publisher: int, number: int) -> None:
        """Take note that a voice hears *number* of *publisher*."""
        findings, now = self.findings, time.monotonic()
        findings.received += 1
        findings.longest_silence = max(findings.longest_silence, now - voice.last)
        voice.last = now
        if number <= voice.heard[publisher]:
            findings.repeated += 1
            return
        self._note_gap(voice, publisher, number - voice.heard[publisher] - 1)
        voice.heard[publisher] = number
        voice.announced_at[publisher] = voice.announced

    def _note_gap(self, voice: Voice, publisher: int, missing: int) -> None:
        """Take note that so many numbers of *publisher* will not come any more."""
        self.findings.missing += missing
        if missing and voice.announced == voice.announced_at[publisher]:
            self.findings.unannounced += 1

    def _finish(self) -> None:
        """Wait until all has arrived: the first answer to a ping says that all is routed, the second one comes behind what waited."""
        for count in (1, 2):
            for voice in self.voices:
                voice.socket.setblocking(True)
                voice.socket.send(b"CMSG !/bus/ping\0%d" % count)
                voice.socket.setblocking(False)
            end = time.monotonic() + END_SECONDS
            while any(voice.is_open and voice.pings < count for voice in self.voices):
                if time.monotonic() > end:
                    self.findings.errors.append(f"no answer to a ping after {END_SECONDS} s")
                    return
                self._wait(0.1)
        for voice in self.voices:
            for publisher in self.voices:
                self._note_gap(voice, publisher.name, publisher.sent - voice.heard[publisher.name])

    def _complain(self, voice: Voice, error: object) -> None:
        """Take note that a voice has lost its bus."""
        if voice.is_open:
            voice.is_open = False
            self.selector.unregister(voice.socket)
            self.findings.ended += 1
            self.findings.errors.append(f"voice {voice.name}: {error}")

    def _report(self) -> None:
        """Write the findings."""
        self.findings.least_announced = min(voice.announced for voice in [*self.voices, *self.listeners])
        print(json.dumps(asdict(self.findings)), flush=True)

    def _await_ping(self, voice: Voice) -> None:
        """Wait until all that a new voice has sent is done."""
        voice.socket.send(b"CMSG !/bus/ping\0ready")
        while not voice.socket.recv(4096).startswith(b"CMSG !/bus/ping\0"):
            pass


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--voices", type=int, default=10)
    parser.add_argument("--listeners", type=int, default=0)
    parser.add_argument("--interval", type=float, default=0.02)
    options = parser.parse_args()
    choir = Choir(options.address, options.voices, options.listeners, options.interval)
    print("ready", flush=True)
    choir.run()


if __name__ == "__main__":
    main()
