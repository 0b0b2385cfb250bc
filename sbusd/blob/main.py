"""The program sbus-blob(8)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from sbusd.blob import log_messages
from sbusd.blob.connection import listening_socket
from sbusd.blob.service import LEAST_DESCRIPTORS, BlobService
from sbusd.client import bus_address
from sbusd.config.blob import SYSTEM_BUS, BlobSettings
from sbusd.config.files import default_main_file
from sbusd.config.loading import load_settings
from sbusd.config.users import ChargedUsers
from sbusd.descriptor_limit import descriptor_shortage, raised_descriptor_limit
from sbusd.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app, require_only
from sbusd.program import check_configuration, failing_with_status
from sbusd.protocol.blobs import blob_address
from sbusd.standard_error import fail
from sbusd.systemd.event_loop import on_ending_signal, run_service
from sbusd.systemd.log_records import LimitedLog
from sbusd.systemd.service_manager import ServiceManager
from sbusd.systemd.signals import exit_on_ending_signals

app = program_app("Pass large messages and descriptors between the users of a message bus.", "sbus-blob")


@app.command(cls=PlainCommand)
def blob(
    context: typer.Context,
    *,
    config: Annotated[Path | None, config_option("blob.toml")] = None,
    user: Annotated[bool, typer.Option("--user", help="Serve the bus of the calling user.")] = False,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="PATH", help="Create this socket, instead of using the one of systemd.")
    ] = None,
    check: CheckOption = False,
    _version: VersionOption = False,
) -> None:
    """Pass large messages and descriptors between the users of a message bus, see sbus-blob(8)."""
    if check:
        require_only(context, "--check", "check", "config", "user")
    main_file = config or default_main_file("blob.toml", user_bus=user)
    with failing_with_status("sbus-blob"):
        if check:
            check_configuration("sbus-blob", main_file, lambda: load_settings(main_file, BlobSettings, required=config is not None))
            return
        exit_on_ending_signals()
        settings = load_settings(main_file, BlobSettings, required=config is not None)
        max_descriptors = raised_descriptor_limit()
        if (shortage := descriptor_shortage(max_descriptors, LEAST_DESCRIPTORS)) is not None:
            fail("sbus-blob", shortage, os.EX_CONFIG)
        bus = settings.bus or (bus_address(scope="user") if user else SYSTEM_BUS)
        listener, address = listening_socket(listen, blob_address(bus))
        try:
            run_service(_run(settings, bus, listener, address, max_descriptors))
        finally:
            listener.close()
            if listen is not None:
                with contextlib.suppress(OSError):
                    os.unlink(listen)


def main() -> None:
    """Run the program. Status: 0 after SIGTERM or SIGINT, 1 after an error, 2 for wrong options, 78 if the configuration must change."""
    app(prog_name="sbus-blob")


async def _run(settings: BlobSettings, bus: str, listener: socket.socket, address: str, max_descriptors: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    log, manager, charged = LimitedLog("sbus-blob"), ServiceManager.of_environment(), ChargedUsers()
    charged.start()
    service = BlobService(listener, settings, bus, log, max_descriptors, charged=charged)
    task = asyncio.ensure_future(service.run(manager.alive))
    on_ending_signal(task.cancel)
    log.record(log_messages.STARTED, address=address)
    manager.ready("serving blobs")
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    finally:
        charged.close()
        manager.stopping()
        manager.close()
    log.record(log_messages.STOPPED, blobs=service.dropped)


if __name__ == "__main__":
    main()
