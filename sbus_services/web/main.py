"""The program sbus-web(8)."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from pathlib import Path
from typing import Annotated

import typer

from sbus import PatternWarning, bus_address
from sbus_programs.config.quantities import Size
from sbus_programs.helptext import AddressOption, PlainCommand, SystemOption, UserOption, VersionOption, program_app, scope_of
from sbus_programs.program import failing_with_status
from sbus_programs.running_service import RunningService, serve
from sbus_programs.systemd.signals import exit_on_ending_signals
from sbus_services.web.log_messages import STARTED, STOPPED
from sbus_services.web.logins import link_file, print_link
from sbus_services.web.server import ListenAddress, WebServer
from sbus_services.web.session import EVERY_ORDINARY_KEY, AllowList, SessionSettings

LISTEN = "127.0.0.1:0"
MAX_SESSIONS = 16
MAX_PATTERNS = 16
MOST_SESSIONS, MOST_PATTERNS = 200, 1_000
QUEUE_SIZE = "256KiB"

_QUEUE = Size(1 << 10, 64 << 20, "each pattern of each session can use it")

STATUS_SECONDS = 5.0
"""Interval of the sign of life for a service manager."""

app = program_app("Show and use a message bus in a browser.", "sbus-web")


@app.command(cls=PlainCommand)
def web(
    *,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Listen on this loopback address; port 0 chooses a free one.")] = LISTEN,
    allow: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Allow subscriptions to PATTERN, or a part of it.")] = None,
    allow_publish: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Allow publications to keys of PATTERN.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Allow no publications.")] = False,
    address: AddressOption = None,
    system: SystemOption = False,
    user: UserOption = False,
    url_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the link into FILE instead of printing it.")] = None,
    max_sessions: Annotated[int, typer.Option(metavar="N", min=1, max=MOST_SESSIONS, help="Maximum number of sessions.")] = MAX_SESSIONS,
    max_patterns: Annotated[
        int, typer.Option(metavar="N", min=1, max=MOST_PATTERNS, help="Maximum number of patterns of a session.")
    ] = MAX_PATTERNS,
    queue_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Messages of a pattern that wait for a slow browser, in bytes.")
    ] = QUEUE_SIZE,
    _version: VersionOption = False,
) -> None:
    """Show and use a message bus in a browser, see sbus-web(8)."""
    scope = scope_of(address, system=system, user=user)
    if read_only and allow_publish:
        raise typer.BadParameter("--read-only and --allow-publish are mutually exclusive")
    try:
        place = ListenAddress.parse(listen)
    except ValueError as wrong:
        raise typer.BadParameter(f"--listen: {wrong}") from None
    try:
        allowed = AllowList.of(
            [EVERY_ORDINARY_KEY] if allow is None else allow,
            [] if read_only else [EVERY_ORDINARY_KEY] if allow_publish is None else allow_publish,
        )
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None
    try:
        queue_bytes = _QUEUE.parse(int(queue_size) if queue_size.isascii() and queue_size.isdecimal() else queue_size)
    except ValueError as wrong:
        raise typer.BadParameter(f"--queue-size: {wrong}") from None
    # The page shows these hints.
    warnings.simplefilter("ignore", PatternWarning)
    settings = SessionSettings(address, scope, allowed, max_patterns, queue_bytes)
    with failing_with_status("sbus-web"):
        exit_on_ending_signals()
        linked = print_link if url_file is None else link_file(url_file)
        bus = bus_address(address, scope=scope)

        async def serve_browsers(service: RunningService) -> None:
            server = WebServer(settings, service.log, max_sessions=max_sessions, linked=linked, charged=service.charged.of)
            await server.listen(place)
            await _serve(service, server, bus)

        serve("sbus-web", serve_browsers, doing=f"cannot listen on {listen}")


def main() -> None:
    """Run the program. Status: 0 after SIGTERM or SIGINT, 1 after an error, 2 for wrong options."""
    app(prog_name="sbus-web")


async def _serve(service: RunningService, server: WebServer, bus: str) -> None:
    """Serve until cancelled."""
    authority = server.address.authority
    service.log.record(STARTED, address=authority, bus=bus)
    service.ready(f"serving browsers on {authority}")
    try:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                service.alive(f"{server.session_count} sessions on {authority}")
                await asyncio.sleep(STATUS_SECONDS)
    finally:
        await server.close()
    service.log.record(STOPPED)


if __name__ == "__main__":
    main()
