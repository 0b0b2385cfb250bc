"""``sbusctl serve``: serves a command by running a program."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Annotated

import typer

from sbus import Allow, AsyncBus, Twins
from sbus.rpc.service import Service
from sbus_programs.systemd.event_loop import run_service
from sbus_programs.systemd.service_manager import ServiceManager
from sbusctl.executables import find_program
from sbusctl.program_runner import ProgramRunner
from sbusctl.settings import MAX_SECONDS, TIMEOUT_SECONDS, Settings, forbid_json, settings_of

AT_ONCE = 8
"""Default number of concurrent programs: a few for each processor of a small machine."""


def serve_command(
    context: typer.Context,
    *,
    name: Annotated[str, typer.Argument(metavar="COMMAND", help="Command to serve.")],
    program: Annotated[str, typer.Option("--exec", metavar="PROGRAM", help="Program to run for each call: a path, or a name in PATH.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARG", help="Arguments of the program. Use -- before an argument that starts with -.")
    ] = None,
    at_once: Annotated[
        int, typer.Option("--max-concurrent", min=1, max=64, metavar="COUNT", help="Maximum number of programs that run concurrently.")
    ] = AT_ONCE,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=0.001, max=MAX_SECONDS, metavar="SECONDS", help="Maximum run time of the program, after which it is killed."
        ),
    ] = 30.0,
    users: Annotated[list[str] | None, typer.Option("--allow-user", metavar="USER", help="Accept calls of this user. Repeatable.")] = None,
    groups: Annotated[
        list[str] | None, typer.Option("--allow-group", metavar="GROUP", help="Accept calls of the members of this group. Repeatable.")
    ] = None,
    twins: Annotated[
        list[str] | None, typer.Option("--allow-twin", metavar="ID", help="Accept calls from this remote host, or from 'all'. Repeatable.")
    ] = None,
) -> None:
    """Serve a command by running a program for each call."""
    forbid_json(context, "serve")
    allow, other_hosts = _allow(users or [], groups or []), _twins(twins or [])
    found = find_program(program, "--exec")
    worker = ProgramRunner([found, *(arguments or [])], at_once, timeout)
    run_service(_serve(settings_of(context), name, Service(worker.run, allow, other_hosts)))


async def _serve(settings: Settings, name: str, service: Service) -> None:
    """Serve until SIGTERM. Waiting callers are notified."""
    serving = asyncio.current_task()
    stopped = False

    def stop() -> None:
        nonlocal stopped
        if serving is not None and not stopped:  # a further signal must not interrupt the end
            serving.cancel()
        stopped = True

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        async with AsyncBus.connect(settings.address, scope=settings.scope, timeout=TIMEOUT_SECONDS, reconnect=True) as bus:
            try:
                bus.service(name, allow=service.allow, twins=service.twins)(service.handler)
            except ValueError as error:
                raise typer.BadParameter(str(error), param_hint="COMMAND") from None
            await bus.serve(ready=_notify_ready)
    except asyncio.CancelledError:
        if not stopped:
            raise


def _notify_ready() -> None:
    """Notify the service manager, if there is one, that the service is ready."""
    with contextlib.closing(ServiceManager.of_environment()) as manager:
        manager.deliver("READY=1")


def _allow(users: list[str], groups: list[str]) -> Allow | None:
    """Return the allowed callers; None: all. Raises BadParameter if a name is unknown."""
    if not users and not groups:
        return None
    try:
        return Allow(tuple(map(_number, users)), tuple(map(_number, groups)))
    except LookupError as error:
        raise typer.BadParameter(error.args[0], param_hint="--allow-user" if "user" in error.args[0] else "--allow-group") from None


def _twins(names: list[str]) -> Twins | None:
    """Return the other hosts that may call; None: none. Raises BadParameter if a number is invalid."""
    numbers = []
    for name in names:
        if name != "all":
            if not isinstance(number := _number(name), int):
                raise typer.BadParameter(f"{name!r} is neither a host number nor 'all'", param_hint="--allow-twin")
            numbers.append(number)
    try:
        chosen = Twins(tuple(numbers))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--allow-twin") from None
    if not names:
        return None
    # "all" includes all numbers.
    return Twins() if "all" in names else chosen


def _number(name: str) -> str | int:
    """Return *name* as a number if it is one."""
    return int(name) if name.isascii() and name.isdigit() and len(name) <= 10 else name
