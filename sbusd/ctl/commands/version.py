"""``sbusctl version``: prints the versions of sbusctl and the bus."""

from __future__ import annotations

import typer

from sbusd import __version__
from sbusd.ctl.output import JsonStyle, error_text, visible, write_json, write_lines
from sbusd.ctl.responses import JsonObject, ask, text
from sbusd.ctl.settings import Settings, settings_of
from sbusd.protocol import controls
from sbusd.protocol.errors import SbusError

_PATIENCE_SECONDS = 5.0
"""Short, because the version of sbusctl should be printed soon even if the bus hangs."""


def command(context: typer.Context) -> None:
    """Print the versions of sbusctl and of the bus.

    A bus that cannot be reached is reported, and is not an error.
    """
    settings = settings_of(context)
    versions = fetch(settings)
    if settings.json is JsonStyle.OFF:
        write_lines(lines(versions))
    else:
        write_json(versions, settings.json)


def fetch(settings: Settings) -> JsonObject:
    """Return the versions: ``sbusctl``, and ``bus`` and ``switch``, or ``problem`` if no bus responds."""
    versions: dict[str, object] = {"sbusctl": __version__}
    try:
        with settings.connect(_PATIENCE_SECONDS) as bus:
            stats = ask(bus, controls.STATS)
    except (SbusError, OSError) as error:
        return {**versions, "problem": error_text(error)}
    versions["bus"] = text(stats, "version")
    # The bus reports it to its owner only.
    if switch := text(stats, "switch"):
        versions["switch"] = switch
    return versions


def lines(versions: JsonObject) -> list[str]:
    """Return *versions* as text."""
    bus = text(versions, "bus") or "version unknown"
    if problem := text(versions, "problem"):
        bus = f"not reachable: {problem}"
    elif switch := text(versions, "switch"):
        bus = f"{bus} ({switch} switch)"
    return [f"sbusctl {visible(text(versions, 'sbusctl') or '')}", f"bus {visible(bus)}"]
