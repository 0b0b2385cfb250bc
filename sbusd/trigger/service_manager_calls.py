"""Calls of systemctl(1), the stable interface to the service manager on each version of systemd."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass

from sbusd.protocol.printable import printable

_VERBS = {"start": "start", "restart": "restart", "reload": "reload-or-restart", "stop": "stop"}

_READ_BYTES = 4 << 10
"""Bytes of the error text that are read."""

_SHOWN_CHARACTERS = 300

STATE_SECONDS = 30.0
"""Maximum time to wait for the state of a unit. The time of an action is limited by its unit, TimeoutStartSec= in systemd.service(5)."""


@dataclass(frozen=True, slots=True)
class ServiceManagerCalls:
    """The service manager of the system, or of the calling user."""

    is_user: bool = False
    program: str = "systemctl"

    async def run(self, action: str, unit: str, *, waits: bool = True) -> str:
        """Do *action* with *unit*, and wait for the end of its job if it *waits*; return why it failed, or no words."""
        # "--": a name never counts as an option.
        options = ["--no-ask-password", "--no-pager", *([] if waits else ["--no-block"])]
        try:
            status, text = await self._call(*options, _VERBS[action], "--", unit, is_error_read=True)
        except OSError as error:
            return f"cannot run {self.program}: {error.strerror}"
        line = printable(" ".join(text.split()), _SHOWN_CHARACTERS)
        return "" if status == 0 else line or f"{self.program} exited with status {status}"

    async def state(self, unit: str) -> tuple[str, str]:
        """Return the active state of *unit* and its result, such as ``failed`` and ``exit-code``; ``unknown`` if they cannot be read."""
        try:
            async with asyncio.timeout(STATE_SECONDS):
                _, text = await self._call("--no-pager", "show", "--property=ActiveState,Result", "--", unit)
        except OSError:
            text = ""
        found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return printable(found.get("ActiveState") or "unknown"), printable(found.get("Result") or "unknown")

    async def _call(self, *words: str, is_error_read: bool = False) -> tuple[int, str]:
        """Return the status of systemctl, and the beginning of its output, or of its error output. Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            self.program,
            *(["--user"] if self.is_user else []),
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL if is_error_read else asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if is_error_read else asyncio.subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
            cwd="/",
        )
        try:
            text = await _beginning(process.stderr if is_error_read else process.stdout)
            return await process.wait(), text.decode("utf-8", "replace")
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # the job goes on without it
            await process.wait()
            raise


async def _beginning(stream: asyncio.StreamReader | None) -> bytes:
    """Return the beginning of *stream*, and read the rest of it."""
    text = b""
    while stream is not None and (piece := await stream.read(_READ_BYTES)):
        text += piece[: _READ_BYTES - len(text)]
    return text
