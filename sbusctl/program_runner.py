"""Runs a program for each request of ``sbusctl serve``, with limits for concurrency, time and output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager

from sbus import Request, ServiceError
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbusctl.processes import user_name

MAX_ANSWER_BYTES = MAX_PACKET_BYTES // 4 * 3
"""Maximum output: a response holds no more, because base64 makes four bytes of three."""

_TAIL_BYTES = 4_096
"""The last bytes of standard error are kept, because its last line is sent to the caller."""

_CHUNK_BYTES = 65_536

_END_SECONDS = 5.0
"""Time limit for reading the output of a program that was killed."""


class ProgramRunner:
    """Runs *command* for each request, at most *at_once* concurrently, each for at most *seconds*."""

    def __init__(self, command: Sequence[str], at_once: int, seconds: float) -> None:
        self._command = command
        self._turns = FairSemaphore(at_once)
        self._seconds = seconds

    async def run(self, request: Request) -> bytes:
        """Return the standard output of the program for *request*, whose data is its standard input.

        Raises:
            ServiceError: the program could not be started, took too long, wrote too much, or had an exit status other than 0; or the
                call expired in the queue.
        """
        async with self._turns.place(request.party):
            if request.expires_at is not None and time.time() >= request.expires_at:
                raise ServiceError("the program was not run: the call expired in the queue")
            starting = asyncio.ensure_future(self._start(request))
            try:
                # Shielded: if the start were cancelled, the program would run unnoticed.
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                with contextlib.suppress(ServiceError):
                    await _end(await starting)
                raise
            try:
                return await self._follow(process, request.data)
            finally:
                await _end(process)

    async def _start(self, request: Request) -> asyncio.subprocess.Process:
        """Start the program. Raises ServiceError."""
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment(request, os.environ),
                start_new_session=True,
            )
        except OSError as error:
            raise ServiceError(f"cannot run the program: {error.strerror}") from error

    async def _follow(self, process: asyncio.subprocess.Process, data: bytes) -> bytes:
        """Return the output of *process* after it exited with status 0."""
        output, errors = asyncio.ensure_future(_read(process.stdout)), asyncio.ensure_future(_read_tail(process.stderr))
        parts = (asyncio.ensure_future(_feed(process, data)), output, errors)
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.gather(*parts)
                status = await process.wait()
        except TimeoutError:
            raise ServiceError(f"the program was killed: it ran longer than {self._seconds:g} s") from None
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        if status:
            raise ServiceError(failure(status, errors.result()))
        return output.result()


def environment(request: Request, surroundings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program: *surroundings*, and the caller as verified by the bus. The caller controls none of it."""
    caller = request.caller
    # A caller on another host is not a local user, so a script must not find a number to compare.
    credentials = ("", "", "", "")
    if not request.source:
        credentials = (str(caller.uid), str(caller.gid), str(caller.pid), user_name(caller.uid))
    uid, gid, pid, user = credentials
    return dict(surroundings) | {
        "SBUS_COMMAND": request.command,
        "SBUS_CALLER_TWIN": str(request.source),
        "SBUS_CALLER_ID": str(caller.connection),
        "SBUS_CALLER_UID": uid,
        "SBUS_CALLER_GID": gid,
        "SBUS_CALLER_PID": pid,
        "SBUS_CALLER_USER": user,
    }


def failure(status: int, errors: bytes) -> str:
    """Return how a program ended, and the last line of its standard error, if any."""
    lines = [line for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    how = f"exit status {status}" if status > 0 else f"killed by {_signal_name(-status)}"
    return f"{how}: {lines[-1].strip()}" if lines else how


def _signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a program and its children, which may hold its output open."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # wait() returns only after both outputs are closed, so they are read. A child in another session can hold them open forever; it must
    # not delay the next request.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            await asyncio.gather(_close(process.stdin), _discard(process.stdout), _discard(process.stderr), process.wait())


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    """Write *data* to the program, which may ignore it."""
    if process.stdin is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """Return the whole output. Raises ServiceError if it is too large."""
    parts: list[bytes] = []
    size = 0
    while stream is not None and (part := await stream.read(_CHUNK_BYTES)):
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise ServiceError(f"the output of the program is too large: the maximum is {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


async def _close(stream: asyncio.StreamWriter | None) -> None:
    """Close the input of a program; it is not an error if the program did not read all of it."""
    if stream is not None:
        stream.close()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await stream.wait_closed()


async def _discard(stream: asyncio.StreamReader | None) -> None:
    """Read and drop the whole output."""
    while stream is not None and await stream.read(_CHUNK_BYTES):
        pass


async def _read_tail(stream: asyncio.StreamReader | None) -> bytes:
    """Return the end of the output."""
    tail = b""
    while stream is not None and (part := await stream.read(_CHUNK_BYTES)):
        tail = (tail + part)[-_TAIL_BYTES:]
    return tail


class FairSemaphore:
    """A semaphore with a number of *places*."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def place(self, party: Hashable) -> AsyncIterator[None]:
        """Hold a place for *party*, a user or another host, when it is its turn."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(party)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, party: Hashable) -> None:
        """Wait for a place."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(party, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The place was passed on at the moment of the cancellation.
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the place to the next party, which then becomes the last."""
        while self._waiting:
            party, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._waiting[party] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
