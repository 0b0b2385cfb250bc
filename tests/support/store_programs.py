"""The program sbus-store as a process with a configuration of its own, and its calls as tests make them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from sbus import Bus, RemoteError, SbusError
from sbus.protocol.framed_data import framed_data, message_frame, parse_framed_data, split_message
from tests.support.forked_programs import start_program
from tests.support.relays import wait_for
from tests.support.service_programs import ServiceProgram
from tests.support.users import User
from tools.stage import ROOT

CALL_SECONDS = 60.0

BUS_RIGHTS = f"""
[rights]
vouch = {{ users = [{os.geteuid()}] }}
presence = {{ users = [{os.geteuid()}] }}
deliver = {{ users = [{os.geteuid()}] }}
"""
"""The rights that the user of these tests needs on a bus to run the store there; see sbus-store(8), "ACCESS"."""

ENV = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}


class StoreProgram(ServiceProgram):
    """sbus-store with the configuration *text* for the bus at *bus*, run by the command *prefix*; a context."""

    def __init__(self, folder: Path, bus: str, text: str, prefix: Sequence[str] = ()) -> None:
        super().__init__(folder / "store.log")
        self.bus = bus
        self._prefix = prefix
        self.file = folder / "store.sqlite"
        self.config = folder / "store.toml"
        self.configure(text)

    def configure(self, text: str) -> None:
        """Write the configuration file."""
        self.config.write_text(f'bus = "{self.bus}"\nfile = "{self.file}"\nstate_interval = 1\n{text}')

    def start(self, *, waits: bool = True) -> None:
        """Start the process, and wait until it serves."""
        with self._log.open("ab") as log:
            self.process = start_program(
                "sbus_services.store.main", "-C", str(self.config), prefix=self._prefix, env=ENV, stdout=log.fileno(), stderr=log.fileno()
            )
        if waits:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until it serves calls."""

        def serves() -> bool:
            self.check_running()
            try:
                with Bus.connect(self.bus) as bus:
                    return bool(bus.call("store/status", timeout=CALL_SECONDS))
            except SbusError:  # not yet
                return False

        wait_for(serves, f"the store: {self.log}")

    def reload(self) -> str:
        """Let it read its configuration again, and return what it has logged about that."""
        before = len(self.log)
        self.check_running().send_signal(signal.SIGHUP)
        wait_for(lambda: "reloaded" in self.log[before:], "the reload")
        return self.log[before:]


@dataclass
class Found:
    """A response: its object, and its messages."""

    head: dict[str, Any]
    messages: list[tuple[bytes, bytes]]

    def __getitem__(self, name: str) -> Any:
        """Return a member of the object."""
        return self.head[name]

    @property
    def payloads(self) -> list[bytes]:
        """The payloads of the messages."""
        return [payload for _, payload in self.messages]

    @property
    def leases(self) -> list[int]:
        """The leases of jobs."""
        return [each["lease"] for each in self.head["jobs"]]


class StoreCaller:
    """Calls of the store on a connection of its own, as *user* or as the test itself; a context."""

    def __init__(self, bus: str, user: User | None = None) -> None:
        opened = None if user is None else user.connect(bus)
        self.bus = Bus.connect(bus if opened is None else f"/dev/fd/{opened.fileno()}", timeout=CALL_SECONDS)
        if opened is not None:
            opened.close()  # the client has a descriptor of its own

    def __enter__(self) -> StoreCaller:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bus.close()

    def call(self, name: str, sent: Sequence[tuple[bytes, bytes]] = (), **head: Any) -> Found:
        """Make the call ``store/<name>``; ``from_`` is sent as ``from``. Raises SbusError."""
        given = {key.rstrip("_"): value for key, value in head.items()}
        data = framed_data(given, [message_frame(*each) for each in sent])
        answer, frames = parse_framed_data(bytes(self.bus.call(f"store/{name}", data, timeout=CALL_SECONDS)))
        return Found(answer, [split_message(frame) if frame else (b"", b"") for frame in frames])

    def put(self, key: str, *payloads: bytes, **options: Any) -> list[int]:
        """Put messages with one key, all with *options*; return their numbers. Raises AssertionError if one is rejected."""
        found = self.call("put", [(key.encode(), payload) for payload in payloads], messages=[options] * len(payloads))
        assert "errors" not in found.head, found.head
        numbers: list[int] = found["seqs"]
        return numbers

    def error(self, name: str, sent: Sequence[tuple[bytes, bytes]] = (), **head: Any) -> str:
        """Return the error of a call, which must fail."""
        try:
            found = self.call(name, sent, **head)
        except RemoteError as error:
            return error.words
        raise AssertionError(f"{name} succeeded: {found}")
