"""The start of sbus-store with many last values."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from sbus import Bus, NoBus, SbusError
from sbus_programs.config.loading import load_settings
from sbus_programs.config.store import StoreSettings
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError, NewMessage, Sender
from tests.bench.programs import BenchError
from tests.bench.store.servers import RIGHTS
from tests.support.relays import wait_for
from tests.support.store_clocks import OneClock
from tests.support.store_programs import ENV, StoreProgram

GROUP = 10_000

START_SECONDS = 120.0
"""When a store that does not serve is a failure."""


def start_seconds(folder: Path, keys: int) -> float:
    """Return the time from the start of the program, with *keys* last values in its file, until it answers a call. Raises BenchError."""
    folder.mkdir()
    config = folder / "sbusd.toml"
    config.write_text(RIGHTS.format(uid=os.geteuid()))
    address = str(folder / "bus")
    limits = f'max_keys = {keys}\nmax_keys_per_user = {keys}\nmax_bytes_per_user = "2GiB"\nmax_bytes = "2GiB"\n'
    program = StoreProgram(folder, address, f'[[stream]]\nname = "state"\nkeys = ["state/"]\nlast = 1\n{limits}', ["env"])
    _fill(program, keys)
    command = [sys.executable, "-m", "sbusd.daemon.main", "-f", "-a", address, "-C", str(config)]
    bus = subprocess.Popen(command, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: _answers(address), "the bus")
        with Bus.connect(address) as client:
            begin = time.perf_counter()
            program.start(waits=False)
            _wait_until_served(client, begin)
            return time.perf_counter() - begin
    finally:
        program.kill()
        bus.kill()
        bus.wait()


def _answers(address: str) -> bool:
    """Return whether the bus at *address* accepts connections: its socket is there a moment before."""
    try:
        Bus.connect(address).close()
    except NoBus:
        return False
    return True


def _fill(program: StoreProgram, keys: int) -> None:
    """Put one value of each key into the file, without the bus."""
    settings = load_settings(program.config, StoreSettings, required=True)
    engine = Engine(Path(settings.file), settings, OneClock(lambda: time.time_ns() // 1_000_000))
    sender = Sender(os.geteuid(), os.getegid(), os.getpid())
    for start in range(0, keys, GROUP):
        numbers = range(start, min(start + GROUP, keys))
        messages = [NewMessage(b"state/%d" % number, b"%64d" % number, sender) for number in numbers]
        for outcome in engine.put_many("state", messages):
            if isinstance(outcome, EngineError):
                raise BenchError(f"a key was not stored: {outcome}")
    engine.close()


def _wait_until_served(client: Bus, begin: float) -> None:
    """Wait until a last value can be read. Raises BenchError."""
    while True:
        try:
            next(client.store.last("state/0"))
        except SbusError as error:  # it does not serve yet
            if time.perf_counter() - begin > START_SECONDS:
                raise BenchError(f"the store does not serve after {START_SECONDS:g} s: {error}") from None
            time.sleep(0.005)
        else:
            return
