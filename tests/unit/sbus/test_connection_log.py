"""Log records about a connection: one for each event, at their levels, and written when the bus may be used."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from sbus import AsyncBus, Bus, Disconnected
from sbus.connection_log import ConnectionLog
from sbus.errors import Closed
from tests.unit.sbus.conftest import WAIT_SECONDS, FakeBus
from tools.stage import ROOT

LOGGER = "sbus"


def records(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == LOGGER]


def wait_until(is_done: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + WAIT_SECONDS
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def every_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)


def test_a_bus_that_is_closed(fake: FakeBus, caplog: pytest.LogCaptureFixture) -> None:
    with Bus.connect(fake.address) as bus:
        for _ in range(100):
            bus.publish("secret/key", "secret payload")
        bus.ping()
    bus.close()
    assert records(caplog) == [("INFO", f"connected to {fake.address}"), ("INFO", f"closed the connection to {fake.address}")]


def test_a_bus_that_ends(fake: FakeBus, caplog: pytest.LogCaptureFixture) -> None:
    """The next call raises the reason, so the record has the level INFO."""
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as sub:
        peer = fake.peer()
        peer.say(b"CMSG !/bus/error\0EACCES go \x1b away")
        peer.hang_up()
        with pytest.raises(Disconnected):
            sub.receive(WAIT_SECONDS)
    assert records(caplog)[1:] == [("INFO", f"disconnected from {fake.address}: EACCES go \N{REPLACEMENT CHARACTER} away")]


@pytest.mark.parametrize("background", [False, True])
def test_a_connection_that_is_made_again(fake: FakeBus, caplog: pytest.LogCaptureFixture, *, background: bool) -> None:
    with Bus.connect(fake.address, reconnect=True, background=background) as bus, bus.subscribe("a"):
        peer = fake.peer()
        fake.stop_listening()
        peer.hang_up()
        if background:
            wait_until(lambda: len(records(caplog)) == 2)  # before it is connected again
            assert bus.state == "reconnecting"
        fake.listen()
        with contextlib.suppress(Disconnected):  # the call that notices it
            bus.ping()
        bus.ping()
        wait_until(lambda: len(records(caplog)) == 3)
    wait_until(lambda: len(records(caplog)) == 4)
    levels, words = zip(*records(caplog), strict=True)
    assert levels == ("INFO", "WARNING", "INFO", "INFO")
    assert words[1] == f"disconnected from {fake.address}; reconnecting"
    assert words[2].startswith(f"reconnected to {fake.address} after ")
    assert "at attempt" in words[2]


def test_asyncio_has_the_same_records(fake: FakeBus, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address, reconnect=True) as bus, bus.subscribe("a"):
            fake.peer().hang_up()
            while len(records(caplog)) < 3:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))
    assert [level for level, _ in records(caplog)] == ["INFO", "WARNING", "INFO", "INFO"]


def test_losses_are_recorded_more_and_more_rarely() -> None:
    log = ConnectionLog()
    log.connected("/s")
    for number in range(1, 1_001):
        log.lost(0 if number == 1 else 5, 5 * (number - 1))
    words = [words for _, words in log.pending]
    assert len(words) == 11
    assert words[1:4] == [
        "lost packets for /s: an unknown number (so far: 0; losses: 1)",
        "lost packets for /s: 5 (so far: 5; losses: 2)",
        "lost packets for /s: 5 (so far: 15; losses: 4)",
    ]


def test_an_end_is_recorded_once() -> None:
    log = ConnectionLog()
    log.disconnected(Disconnected("/s"), is_final=True)
    log.connected("/s")
    log.disconnected(Disconnected("/s"), is_final=False)
    log.disconnected(Closed("the bus"), is_final=True)
    assert [words for _, words in log.pending] == ["connected to /s", "disconnected from /s; reconnecting"]


def test_a_handler_may_use_the_bus_that_it_is_about(fake: FakeBus, caplog: pytest.LogCaptureFixture) -> None:
    """Also while that bus connects again, from its own thread."""
    seen: list[str] = []

    class Publisher(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(bus.state)
            bus.publish("log", record.getMessage())

    with Bus.connect(fake.address, reconnect=True, background=True, timeout=WAIT_SECONDS) as bus, bus.subscribe("a"):
        handler = Publisher(logging.INFO)
        logging.getLogger(LOGGER).addHandler(handler)
        try:
            fake.peer().hang_up()
            peer = fake.peer()
            wait_until(lambda: len(seen) == 2)
            bus.ping()
            wait_until(lambda: sum(packet.startswith(b"MSG log\0") for packet in peer.received) == 2)
        finally:
            logging.getLogger(LOGGER).removeHandler(handler)


_WITHOUT_LOGGING = """
import sys
from sbus import Bus

with Bus.connect(sys.argv[1]) as bus:
    bus.publish("a")
print("logging" in sys.modules)
"""


@pytest.mark.slow
def test_a_program_without_logging_does_not_import_it(fake: FakeBus) -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_LOGGING, fake.address], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
