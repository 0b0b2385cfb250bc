"""Checks the configuration of the bus, as far as this user may read it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from sbusd.config import ConfigError, check_daemon_settings, configuration_files, default_main_file, describe
from sbusd.config.files import SYSTEM_FOLDER, drop_in_folders
from sbusd.ctl.checks import CheckResult, Finding


def check_configuration(scope: Literal["system", "user"] | None) -> Finding:
    """Return the finding for the configuration of the bus of *scope*; None: the files of this bus are not known."""
    if scope is None:
        return Finding("configuration", CheckResult.SKIP, "this is neither the system bus nor the user bus, so its files are not known")
    return check_file(default_main_file(user_bus=scope == "user"))


def check_file(main_file: Path) -> Finding:
    """Return the finding for *main_file* and its drop-ins."""
    if hidden := _unreadable(main_file):
        return Finding("configuration", CheckResult.SKIP, f"{hidden} is not readable by this user")
    try:
        configuration = check_daemon_settings(main_file)
    except ConfigError as error:
        advice = "correct the file: with a faulty main file the bus does not start, with an unreadable drop-in it denies every key"
        return Finding("configuration", CheckResult.FAIL, str(error), advice)
    if not configuration.faults:
        return Finding("configuration", CheckResult.OK, describe(configuration, main_file))
    first, more = configuration.faults[0], len(configuration.faults) - 1
    reason = f"{first} ({more} more; sbusd --check-config lists them)" if more else str(first)
    return Finding("configuration", CheckResult.FAIL, reason, f"correct or remove the file, then: {_reload(main_file)}")


def _reload(main_file: Path) -> str:
    """Return the command that reloads the configuration."""
    return "systemctl reload sbus.service" if main_file.parent == SYSTEM_FOLDER else "systemctl --user reload sbus.service"


def _unreadable(main_file: Path) -> Path | None:
    """Return an existing file or directory of the configuration that this user may not read, if any."""
    for place in (main_file.parent, *drop_in_folders(main_file)):
        if place.exists() and not os.access(place, os.R_OK | os.X_OK):
            return place
    return next((file for file in configuration_files(main_file) if file.exists() and not os.access(file, os.R_OK)), None)
