"""Stored messages: a value for a subscriber that comes later, and jobs of which none is lost."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from sbus import Bus, SbusError
from tools.demo.activation import ActivatedBus
from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import PAUSE_SECONDS, TIMEOUT_SECONDS, Programs
from tools.demo.users import DemoUser

CONFIGURATION = """
[[stream]]
name = "forecast"
keys = ["forecast/"]
last = 1
on_subscribe = true

[[stream]]
name = "mail"
keys = ["mail/"]
[[queue]]
name = "mail"
stream = "mail"
tries = 2
backoff = ["100ms"]
"""

WORK = "while echo working; do sleep 0.1; done"
"""Works until nothing reads its output."""


class StoreDemo:
    """The store next to *bus*, and two users."""

    def __init__(self, bus: ActivatedBus, programs: Programs, narrator: Narrator, folder: Path) -> None:
        self._bus = bus
        self._programs = programs
        self._narrator = narrator
        self._folder = folder

    def show(self, first: DemoUser, second: DemoUser) -> None:
        """Start the store, and show what it keeps. Raises DemoError."""
        self._narrator.step("The service sbus-store keeps messages on disk; its configuration says which")
        configuration = self._folder / "store.toml"
        configuration.write_text(f'bus = "{self._bus.path}"\nfile = "{self._folder / "store.sqlite"}"\n{CONFIGURATION}')
        with self._programs.running(None, "sbus-store", "-C", str(configuration)) as store:
            self._wait_for(store)
            self._show_last_value(first, second)
            self._show_killed_worker(first, second)
            self._show_dead_letter(first, second)

    def _show_last_value(self, first: DemoUser, second: DemoUser) -> None:
        """A subscriber receives the value that was there before."""
        self._programs.run(first, "sbusctl", "store", "put", "forecast/oslo", "snow")
        self._narrator.remark(f"{second.name} subscribes later, and receives:")
        said = self._programs.run(second, "sbusctl", "sub", "forecast/", "-n", "1", "--timeout", "60")
        _check(said == "forecast/oslo\tsnow\n", f"the last value did not come: {said!r}")

    def _show_killed_worker(self, first: DemoUser, second: DemoUser) -> None:
        """A job whose worker is killed is given to another one."""
        self._programs.run(first, "sbusctl", "store", "put", "mail/1", "dear reader")
        with self._programs.running(second, "sbusctl", "store", "work", "mail", "--", "sh", "-c", WORK) as worker:
            _check(worker.stdout is not None and worker.stdout.readline() == "working\n", "the first worker got no job")
            self._narrator.remark(f"kill -9 ends the worker; another worker of {second.name} gets the job at once:")
            worker.kill()
        said = self._programs.run(second, "sbusctl", "store", "work", "mail", "--count", "1", "--timeout", "60", "--", "cat")
        _check(said == "dear reader", f"the job was not given to another worker: {said!r}")

    def _show_dead_letter(self, first: DemoUser, second: DemoUser) -> None:
        """A job that fails again and again is kept, and its worker is not asked any more."""
        self._programs.run(first, "sbusctl", "store", "put", "mail/2", "unreadable")
        self._programs.run(second, "sbusctl", "store", "work", "mail", "--count", "2", "--timeout", "60", "--", "false")
        self._narrator.remark("after the last try it is a dead letter:")
        said = self._programs.run(second, "sbusctl", "store", "peek", "mail", "--queue", "--state", "dead")
        _check("unreadable" in said and "dead, 2 tries" in said, f"the dead letter is missing: {said!r}")

    def _wait_for(self, store: subprocess.Popen[str]) -> None:
        """Wait until the store serves."""
        pause = threading.Event()
        for _ in range(int(TIMEOUT_SECONDS / PAUSE_SECONDS)):
            try:
                with Bus.connect(str(self._bus.path)) as bus:
                    bus.call("store/status", timeout=TIMEOUT_SECONDS)
            except SbusError:  # not yet
                _check(store.poll() is None, "sbus-store has ended")
                pause.wait(PAUSE_SECONDS)
            else:
                return
        raise DemoError("sbus-store does not serve")


def _check(happened: bool, reason: str) -> None:
    """Fail the demonstration with *reason* unless the announced result *happened*."""
    if not happened:
        raise DemoError(reason)
