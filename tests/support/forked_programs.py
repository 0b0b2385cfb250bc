"""Programs of this project, forked from a process that has imported them: to import takes most of the processor time of a start.

A program runs as ``python -m`` runs it, but for the command line in proc_pid_cmdline(5). Each combination of options of the interpreter
has one launcher, a process without threads, which ends with the tests.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from tools.stage import ROOT

_REQUEST_BYTES = 1 << 16

_CLONE_NEWNET = 0x40000000
"""From sched.h."""

_spent: list[float] = []
"""The processor time of each program that has ended."""


def processor_seconds() -> float:
    """Return the processor time of all programs that have ended: this process is not their parent."""
    return sum(_spent)


class ForkedProgram:
    """A running or ended program, as :class:`subprocess.Popen` has it."""

    def __init__(self, launcher: _Launcher, pid: int, args: list[str], stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.args = args
        """The command that would start it."""
        self.returncode: int | None = None
        self.stdout = stdout
        self._launcher = launcher
        self._descriptor = os.pidfd_open(pid)  # until the launcher is asked for the status, the number has no other process

    def poll(self) -> int | None:
        """Return the status if it has ended."""
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the status. Raises subprocess.TimeoutExpired after *timeout* seconds."""
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send the signal *number*, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _status(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._descriptor], [], [], timeout)[0]:
            status, seconds = self._launcher.ask({"ended": self.pid}).split()
            self.returncode = int(status)
            _spent.append(float(seconds))
            os.close(self._descriptor)
        return self.returncode


StartedProgram = subprocess.Popen[bytes] | ForkedProgram
"""A program behind a prefix, other than that of a network namespace, is not forked."""

_IN_NAMESPACE = ["ip", "netns", "exec"]


def start_program(
    module: str,
    *arguments: str,
    env: Mapping[str, str],
    stdout: int,
    stderr: int,
    options: Sequence[str] = (),
    prefix: Sequence[str] = (),
    imports: Sequence[str] = (),
    constants: Mapping[str, float] | None = None,
) -> StartedProgram:
    """Start ``PREFIX python OPTIONS -m MODULE ARGUMENTS`` in /, with nothing on its standard input.

    *stdout* is a descriptor, or ``subprocess.PIPE``. *env* is the whole environment; what the loader or the interpreter reads there,
    other than PYTHONPATH, needs a prefix; so does a program that changes modules of others. *imports* are modules that *module* would
    import later. *constants* are values of names such as ``sbus_services.metrics.collector.BUS_SECONDS``, for limits that tests wait for.
    """
    *words, namespace = prefix or ("",)
    if prefix and words != _IN_NAMESPACE:
        assert not constants, "only a forked program can have other constants"
        command = [*prefix, sys.executable, *options, "-m", module, *arguments]
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd="/")
    launcher = _launcher(tuple(options), env.get("PYTHONPATH", ""))
    reader, writer = os.pipe() if stdout == subprocess.PIPE else (-1, os.dup(stdout))
    request = {
        "imports": [*imports, module],
        "arguments": arguments,
        "env": dict(env),
        "namespace": namespace,
        "constants": constants or {},
    }
    try:
        pid = int(launcher.ask(request, (writer, stderr)))
    finally:
        os.close(writer)
    args = [sys.executable, *options, "-m", module, *arguments]
    return ForkedProgram(launcher, pid, args, open(reader, "rb", buffering=0) if reader >= 0 else None)


class _Launcher:
    """A process that forks programs."""

    def __init__(self, options: Sequence[str], path: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        env = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": path, "LANG": "C.UTF-8"}
        command = [sys.executable, *options, "-c", "from tests.support.forked_programs import serve; serve()()", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, cwd=ROOT, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def ask(self, request: Mapping[str, object], descriptors: Sequence[int] = ()) -> bytes:
        """Send *request*, and return the response."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
            response = self._socket.recv(_REQUEST_BYTES)
        assert response, f"the launcher has ended: {self._process.poll()}"
        return response

    def close(self) -> None:
        """End it, and all programs that it still has."""
        self._socket.close()
        self._process.wait()


@functools.cache
def _launcher(options: Sequence[str], path: str) -> _Launcher:
    """Return the launcher of programs with *options* of the interpreter and the search path *path*."""
    made = _Launcher(options, path)
    atexit.register(made.close)
    return made


def serve() -> Callable[[], object]:
    """Fork programs until the tests close the socket, whose descriptor is the argument.

    Return what the process then does, in a program its main function: it ends as after ``python -m``, without this function on its stack.
    """
    running: set[int] = set()
    with socket.socket(fileno=int(sys.argv[1])) as tests:
        while True:
            data, passed, _, _ = socket.recv_fds(tests, _REQUEST_BYTES, 2)
            if not data:
                break
            request = json.loads(data)
            if "ended" in request:
                pid = request["ended"]
                running.discard(pid)
                _, status, usage = os.wait4(pid, 0)
                tests.send(b"%d %f" % (os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime))
                continue
            module = [importlib.import_module(name) for name in request["imports"]][-1]
            pid = os.fork()
            if pid == 0:
                break
            running.add(pid)
            for descriptor in passed:
                os.close(descriptor)
            tests.send(b"%d" % pid)
    if data:
        return functools.partial(_become, module.main, module.__file__ or "", request, passed)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return lambda: None


def _become(main: Callable[[], object], file: str, request: Mapping[str, object], passed: Sequence[int]) -> None:
    """Run *main* of *file* as *request* says."""
    for target, descriptor in enumerate(passed, 1):
        os.dup2(descriptor, target)
    os.closerange(3, 1 << 16)
    if request["namespace"]:
        _enter(Path("/run/netns", str(request["namespace"])))
    for name, value in request["constants"].items():  # type: ignore[attr-defined]
        module, _, constant = name.rpartition(".")
        assert hasattr(sys.modules[module], constant), name
        setattr(sys.modules[module], constant, value)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    sys.argv[:] = [file, *request["arguments"]]  # type: ignore[misc]
    # The bus starts this command again when it restarts in place.
    options = sys.orig_argv[1 : sys.orig_argv.index("-c")]
    sys.orig_argv[1:] = [*options, "-m", request["imports"][-1], *request["arguments"]]  # type: ignore[index,misc]
    main()


def _enter(namespace: Path) -> None:
    """Enter a network namespace, as setns(2) does."""
    library = ctypes.CDLL(None, use_errno=True)
    with namespace.open("rb") as file:
        if library.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
