"""The program sbus-trigger as a process, with a systemctl that writes its arguments into a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from sbus import Bus, SbusError
from tests.support.forked_programs import start_program
from tests.support.relays import wait_for
from tests.support.service_programs import ServiceProgram
from tools.stage import ROOT

SYSTEMCTL = """#!/bin/sh
for last; do :; done
case " $* " in *" show "*)
    cat "{folder}/states/$last" 2>/dev/null || printf 'ActiveState=active\\nResult=success\\n'
    exit;;
esac
# Several run at the same time: a line is one write.
{{ printf '%s\\0' "$@"; echo; }} >"{folder}/call.$$" && cat "{folder}/call.$$" >>{folder}/calls
cat "{folder}/messages/$last/payload" >>{folder}/payloads 2>/dev/null
while [ -e "{folder}/hold" ]; do sleep 0.05; done
case $last in broken*) echo "Unit $last not found." >&2; exit 5;; esac
"""


class TriggerProgram(ServiceProgram):
    """sbus-trigger with the rules *text* for the bus at *bus*; a context."""

    def __init__(self, folder: Path, bus: str, text: str, *options: str) -> None:
        super().__init__(folder / "log")
        self.bus = bus
        self.folder = folder
        self.hold = folder / "hold"
        """While this file exists, no call of systemctl ends."""
        self._options = options
        self._config = folder / "trigger.toml"
        self._config.write_text(f'bus = "{bus}"\nfolder = "{folder}/messages"\nstate_interval = 1\n{text}')
        programs = folder / "bin"
        programs.mkdir()
        program = programs / "systemctl"
        program.write_text(SYSTEMCTL.format(folder=folder))
        program.chmod(0o755)
        self._env = {"PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}", "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.hold.unlink(missing_ok=True)
        super().__exit__(kind, error, trace)

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call of systemctl, without its first options."""
        file = self.folder / "calls"
        lines = file.read_bytes().split(b"\0\n")[:-1] if file.exists() else []
        return [[word.decode() for word in line.split(b"\0") if word not in (b"--no-ask-password", b"--no-pager", b"--")] for line in lines]

    @property
    def payloads(self) -> bytes:
        """The payloads that the units have read, one after another."""
        return (self.folder / "payloads").read_bytes()

    def start(self, *, waits: bool = True) -> None:
        """Start the process, and wait until it serves."""
        with self._log.open("ab") as log:
            arguments = ("-C", str(self._config), *self._options)
            self.process = start_program("sbus_services.trigger.main", *arguments, env=self._env, stdout=log.fileno(), stderr=log.fileno())
        if waits:
            wait_for(self.is_serving, f"the trigger: {self.log}")

    def status(self) -> list[dict[str, Any]]:
        """Return the state of each rule."""
        with Bus.connect(self.bus) as bus:
            rules: list[dict[str, Any]] = bus.call("trigger/status", timeout=60.0).json()["rules"]
        return rules

    def counts(self, rule: int = 0) -> dict[str, int]:
        """Return the counters of a rule."""
        counts: dict[str, int] = self.status()[rule]["counts"]
        return counts

    def wait_for_counts(self, rule: int = 0, **expected: int) -> None:
        """Wait until counters of a rule have these values."""

        def found() -> bool:
            counts = self.counts(rule)
            return all(counts.get(name, 0) == value for name, value in expected.items())

        wait_for(found, f"{json.dumps(expected)}; {self.status()}; {self.log}")

    def is_serving(self) -> bool:
        """Return whether all rules get messages."""
        self.check_running()
        try:
            return all(rule["counts"].get("gaps") for rule in self.status())
        except SbusError:  # not yet
            return False
