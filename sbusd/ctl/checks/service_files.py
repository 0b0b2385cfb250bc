"""Checks the configuration of services that have no other check: whether they can read it at their next start."""

from __future__ import annotations

import os
from pathlib import Path

from sbusd.config.files import ConfigError, default_main_file
from sbusd.config.loading import load_settings
from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.checks.units import Scope, Unit, is_enabled, is_missing, shown_units
from sbusd.systemd.service_user import acting_as_user_of

_STARTERS = {"sbus-blob.service": "sbus-blob.socket"}
"""The unit that is enabled, if it is not the service."""


def check_files(scope: Scope, folder: Path | None = None) -> list[Finding]:
    """Return a finding for each service of *scope* that is on and whose configuration, in *folder* or the default one, is not usable.

    Root reads the files of the machine as the user of the service.
    """
    kinds = _kinds(scope)
    shown = shown_units(scope, *kinds, *_STARTERS.values())
    if isinstance(shown, Finding):
        return []
    found = []
    for service, (name, kind) in kinds.items():
        unit = shown.get(service, {})
        if is_missing(unit) or not (_is_on(unit) or _is_on(shown.get(_STARTERS.get(service, ""), {}))):
            continue
        file = default_main_file(name, user_bus=scope == "user") if folder is None else folder / name
        with acting_as_user_of(service, file) as reader:
            try:
                load_settings(file, kind)
            except ConfigError as error:
                found.append(_judge(name, error, reader))
    return found


def _kinds(scope: Scope) -> dict[str, tuple[str, type]]:
    """Return the name of the main file and the type of the settings of each service."""
    from sbusd.config.blob import BlobSettings  # noqa: PLC0415 - settings need pydantic, which is slow
    from sbusd.config.feed_dbus import DBusFeedSettings  # noqa: PLC0415
    from sbusd.config.live import LiveSettings  # noqa: PLC0415
    from sbusd.config.recorder import RecorderSettings  # noqa: PLC0415
    from sbusd.config.ship import ShipSettings  # noqa: PLC0415

    both = {"sbus-blob.service": ("blob.toml", BlobSettings), "sbus-feed@dbus.service": ("feed-dbus.toml", DBusFeedSettings)}
    if scope == "user":
        return both
    return both | {
        "sbus-recorder.service": ("recorder.toml", RecorderSettings),
        "sbus-ship.service": ("ship.toml", ShipSettings),
        "sbus-live.service": ("live.toml", LiveSettings),
    }


def _is_on(unit: Unit) -> bool:
    """Return whether *unit* is enabled or runs."""
    return is_enabled(unit) or unit.get("ActiveState") == "active"


def _judge(name: str, error: ConfigError, reader: str) -> Finding:
    """Return the finding for *error* in the file *name*, which was read as the user *reader*, or as the caller if that is empty."""
    is_hidden = os.path.lexists(error.file) and not os.access(error.file, os.R_OK, effective_ids=True)
    if is_hidden and not reader:
        return Finding(name, CheckResult.SKIP, f"{error.file} is not readable by this user")
    advice = f"let the user {reader} read {error.file}" if is_hidden else f"correct {error.file}"
    return Finding(name, CheckResult.FAIL, f"{error}: the next start of its service would fail", advice)
