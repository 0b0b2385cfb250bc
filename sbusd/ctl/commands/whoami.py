"""``sbusctl whoami``: prints the identity of the caller."""

from __future__ import annotations

import typer

from sbusd.ctl.output import JsonStyle, visible, write_json, write_lines
from sbusd.ctl.settings import settings_of


def command(context: typer.Context) -> None:
    """Print the caller's identity, as verified by the bus.

    The output is the key for private messages to this process: !/cred/GID/UID/PID.
    """
    settings = settings_of(context)
    with settings.connect() as bus:
        key = bus.whoami()
    if settings.json is JsonStyle.OFF:
        write_lines([visible(key)])
    else:
        write_json({"key": visible(key)}, settings.json)
