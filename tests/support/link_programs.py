"""The program sbus-link as a process, with a configuration file of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from sbus import Bus, SbusError
from tests.support.forked_programs import start_program
from tests.support.relays import wait_for
from tests.support.service_programs import ServiceProgram
from tools.stage import ROOT

ENV = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}


PROGRAM = ("sbus_services.link.main",)


class LinkProgram(ServiceProgram):
    """sbus-link with the configuration *text* for the bus at *bus*; a context.

    *prefix* are words before the command, *program* the module and its first arguments.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        bus: str,
        text: str,
        prefix: Sequence[str] = (),
        *,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        super().__init__(folder / f"{name}-link.log")
        self.name = name
        self.bus = bus
        self._config = folder / f"{name}-link.toml"
        self._config.write_text(f'realm = "R"\nhost = "{name}"\nbus = "{bus}"\nstate_interval = 1\n{text}')
        self._prefix = prefix
        self._program = program

    def start(self) -> None:
        """Start the process."""
        prefix = [*self._prefix, *([] if self._program == PROGRAM else ["env"])]
        arguments = (*self._program, "-C", str(self._config))
        with self._log.open("ab") as log:
            self.process = start_program(*arguments, prefix=prefix, env=ENV, stdout=log.fileno(), stderr=log.fileno())

    def wait_for_hosts(self, *names: str) -> None:
        """Wait until exactly these other hosts are alive."""

        def alive() -> bool:
            self.check_running()
            with Bus.connect(self.bus) as bus:
                try:
                    state = json.loads(bus.call("link/status", timeout=10))
                except SbusError:  # it does not serve yet
                    return False
            return sorted(host["name"] for host in state["hosts"] if host["alive"]) == sorted(names)

        wait_for(alive, f"hosts {names} at {self.name}: {self.log}")

    def synchronize(self) -> None:
        """Wait until all live hosts know what the clients of this host want."""
        with Bus.connect(self.bus) as bus:
            assert bus.call("link/sync", timeout=60) == b"{}"
