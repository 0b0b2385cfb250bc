"""The program sbus-blob(8)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from sbus import bus_address
from sbus.protocol.blobs import blob_address
from sbus_programs.config.blob import SYSTEM_BUS, BlobSettings
from sbus_programs.config.files import default_main_file
from sbus_programs.config.loading import load_settings
from sbus_programs.exhaustion import descriptor_shortage, raised_descriptor_limit
from sbus_programs.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app, require_only
from sbus_programs.program import run_configured
from sbus_programs.running_service import RunningService, serve
from sbus_programs.standard_error import fail
from sbus_services.blob import log_messages
from sbus_services.blob.connection import listening_socket
from sbus_services.blob.service import LEAST_DESCRIPTORS, BlobService

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
    run_configured(
        "sbus-blob",
        main_file,
        lambda: load_settings(main_file, BlobSettings, required=config is not None),
        lambda settings: _listen(settings, listen, is_user=user),
        is_check=check,
    )


def main() -> None:
    """Run the program. Status: 0 after SIGTERM or SIGINT, 1 after an error, 2 for wrong options, 78 if the configuration must change."""
    app(prog_name="sbus-blob")


def _listen(settings: BlobSettings, path: str | None, *, is_user: bool) -> None:
    """Listen on the socket at *path*, or without one on that of systemd, and serve."""
    max_descriptors = raised_descriptor_limit()
    if (shortage := descriptor_shortage(max_descriptors, LEAST_DESCRIPTORS)) is not None:
        fail("sbus-blob", shortage, os.EX_CONFIG)
    bus = settings.bus or (bus_address(scope="user") if is_user else SYSTEM_BUS)
    listener, address = listening_socket(path, blob_address(bus))

    async def blob(running: RunningService) -> None:
        service = BlobService(listener, settings, bus, running.log, max_descriptors, charged=running.charged)
        running.log.record(log_messages.STARTED, address=address)
        running.ready("serving blobs")
        with contextlib.suppress(asyncio.CancelledError):
            await service.run(running.alive)
        running.log.record(log_messages.STOPPED, blobs=service.dropped)

    try:
        serve("sbus-blob", blob)
    finally:
        listener.close()
        if path is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)


if __name__ == "__main__":
    main()
