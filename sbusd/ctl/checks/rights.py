"""Checks that a service has the rights on the bus that it needs."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from sbusd.config import ConfigError, check_daemon_settings, default_main_file
from sbusd.ctl.checks import CheckResult, Finding
from sbusd.systemd.service_user import acting_as_user_of


def check_rights(
    service: str, scope: Literal["system", "user"], effects: Mapping[str, str], main_file: Path | None = None, user: str = ""
) -> list[Finding]:
    """Return the findings for the rights of *service*: *effects* has for each right what fails without it.

    On the system bus the service has the *user* of its own name by default. On the user bus it runs as this user, an owner, with the
    right presence by default.
    """
    check = f"{service} rights"
    needed = [name for name in effects if not (scope == "user" and name == "presence")]
    if not needed:
        return []
    try:
        account = pwd.getpwuid(os.geteuid()) if scope == "user" else pwd.getpwnam(user or service)
    except KeyError:
        return [Finding(check, CheckResult.WARN, f"the user {user or service} does not exist", f"install the package {service}")]
    file = main_file or default_main_file(user_bus=scope == "user")
    try:
        with acting_as_user_of("sbus.service", file):
            rights = check_daemon_settings(file).settings.rights
    except (ConfigError, OSError) as error:
        return [Finding(check, CheckResult.SKIP, f"the configuration of the bus cannot be read: {error}")]
    groups = {account.pw_gid, *os.getgrouplist(account.pw_name, account.pw_gid)}
    missing = []
    for name in needed:
        subjects = getattr(rights, name)
        if account.pw_uid not in subjects.users and not groups & set(subjects.groups):
            missing.append(name)
    if not missing:
        return [Finding(check, CheckResult.OK, f"{account.pw_name} has: {' '.join(needed)}")]
    return [
        Finding(
            check,
            CheckResult.FAIL,
            f"user {account.pw_name} does not have the right {name}: {effects[name]}",
            f'add to [rights] in {file}: {name} = {{ users = ["{account.pw_name}"] }}, and reload the bus',
        )
        for name in missing
    ]
