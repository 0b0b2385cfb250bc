"""The program sbus-metrics(8)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sbus import bus_address
from sbus.asyncio.look_ups import LOOK_UP_SECONDS, UNANSWERED
from sbus_programs.config.files import default_main_file
from sbus_programs.config.loading import load_settings
from sbus_programs.config.metrics import MAX_PREFIXES, MetricsSettings
from sbus_programs.exhaustion import descriptor_shortage, raised_descriptor_limit
from sbus_programs.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app, require_only
from sbus_programs.program import run_configured
from sbus_programs.running_service import RunningService, serve
from sbus_programs.standard_error import fail
from sbus_services.metrics import log_messages
from sbus_services.metrics.collector import Collector, KeyPrefixes
from sbus_services.metrics.exposition import check_library
from sbus_services.metrics.listener import (
    MAX_CLOSES,
    address_of,
    created_socket,
    passed_sockets,
    remove_created,
    without_descriptors,
)
from sbus_services.metrics.server import MAX_CONNECTIONS, MAX_OTHERS, Admission, MetricsServer

STATUS_SECONDS = 5.0
"""Interval of the sign of life for a service manager, and of the look whether the program is still used."""

_OWN_DESCRIPTORS = 32
"""Descriptors of the program itself: its sockets, its loop, the journal, and what is open for a moment."""

LEAST_DESCRIPTORS = _OWN_DESCRIPTORS + MAX_PREFIXES + MAX_CONNECTIONS + MAX_OTHERS + MAX_CLOSES
"""With fewer, those that users have sent could leave none for Prometheus."""

app = program_app("Serve the metrics of a message bus to Prometheus.", "sbus-metrics")


@app.command(cls=PlainCommand)
def metrics(
    context: typer.Context,
    *,
    config: Annotated[Path | None, config_option("metrics.toml")] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", metavar="PLACE", help="Create a socket at PATH or HOST:PORT, instead of using those of systemd."),
    ] = None,
    check: CheckOption = False,
    _version: VersionOption = False,
) -> None:
    """Serve the metrics of a message bus to Prometheus, see sbus-metrics(8)."""
    if check:
        require_only(context, "--check", "check", "config")
    main_file = config or default_main_file("metrics.toml")
    run_configured(
        "sbus-metrics",
        main_file,
        lambda: load_settings(main_file, MetricsSettings, required=config is not None),
        lambda settings: _listen(settings, listen or []),
        is_check=check,
    )


def main() -> None:
    """Run the program. Status: 0 at the end, 1 after an error, 2 for wrong options, 78 if the configuration must change."""
    app(prog_name="sbus-metrics")


def _listen(settings: MetricsSettings, places: Sequence[str]) -> None:
    """Listen at *places*, or without places on the sockets of systemd, and serve."""
    check_library()
    if (shortage := descriptor_shortage(raised_descriptor_limit(), LEAST_DESCRIPTORS)) is not None:
        fail("sbus-metrics", shortage, os.EX_CONFIG)
    bus = settings.bus or bus_address(scope="system")
    ends_when_idle = not places and not settings.prefixes
    with contextlib.ExitStack() as created:
        sockets = _sockets(places, created)
        serve("sbus-metrics", lambda service: _metrics(service, settings, bus, sockets, ends_when_idle=ends_when_idle))


def _sockets(places: Sequence[str], created: contextlib.ExitStack) -> list[socket.socket]:
    """Return the listening sockets at *places*, or without places those of systemd. Raises ListenError."""
    sockets = []
    for place in places:
        made = created_socket(place)
        created.callback(remove_created, made, place)
        sockets.append(made)
    sockets = sockets or passed_sockets()
    if not sockets:
        fail("sbus-metrics", "no socket was passed: run: systemctl restart sbus-metrics.socket, or use --listen")
    return sockets


async def _metrics(
    service: RunningService, settings: MetricsSettings, bus: str, sockets: Sequence[socket.socket], *, ends_when_idle: bool
) -> None:
    """Serve until cancelled, or until no request has come for a while."""
    log, charged, loop = service.log, service.charged, asyncio.get_running_loop()
    prefixes = KeyPrefixes(
        bus, settings.prefixes, lambda prefix, reason: log.record_limited(log_messages.NO_TAP, prefix, prefix=prefix, reason=reason)
    )
    collector = Collector(
        bus,
        settings.max_users,
        prefixes,
        lambda cause, reason: log.record_limited(log_messages.NO_METRICS, cause, reason=reason),
        charged,
    )
    admission = Admission(settings.users, charged)
    with contextlib.suppress(*UNANSWERED):  # numbers may scrape, and names once they are found
        async with asyncio.timeout(LOOK_UP_SECONDS):  # wait_for() may swallow a cancellation before Python 3.12
            await admission.look_up()
    server = MetricsServer(collector, admission, log)
    sockets = [without_descriptors(each, charged) for each in sockets]
    await server.listen(sockets)
    counting = asyncio.ensure_future(prefixes.run())
    looking_up = asyncio.ensure_future(admission.run())
    log.record(log_messages.STARTED, bus=bus, address=", ".join(map(address_of, sockets)))
    service.ready("serving metrics")
    server.used_at = loop.time()  # the connection that has started this program may still wait
    try:
        with contextlib.suppress(asyncio.CancelledError):
            while not ends_when_idle or server.is_busy or loop.time() - server.used_at < settings.idle_timeout:
                service.alive(f"{server.scrapes} scrapes")
                if counting.done():
                    counting.result()
                await asyncio.sleep(min(STATUS_SECONDS, settings.idle_timeout))
    finally:
        counting.cancel()
        looking_up.cancel()
        await asyncio.gather(counting, looking_up, return_exceptions=True)
        await server.close()
    log.record(log_messages.STOPPED, scrapes=server.scrapes)


if __name__ == "__main__":
    main()
