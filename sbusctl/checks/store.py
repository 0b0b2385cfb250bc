"""Checks the store: its service, its rights, its disk, and its dead letters."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sbus.bus_documents import JsonObject
from sbus.protocol.printable import printable
from sbus_programs.config import ConfigError, default_main_file
from sbus_programs.config.loading import load_settings
from sbus_programs.systemd.service_user import acting_as_user_of
from sbusctl.checks import CheckResult, Finding
from sbusctl.checks.services import check_rights
from sbusctl.checks.units import Unit, date_doubted, is_enabled, repair_of, systemctl_of
from sbusctl.formatting import human_bytes, human_plural
from sbusctl.responses import integer, mapping

UNIT = "sbus-store.service"

FULL_BYTES = 16 << 20
"""Free space below which the store rejects new messages."""

NEARLY_FULL_BYTES = 1 << 30
NEARLY_FULL = 0.05
"""Less free space than both is nearly full."""

ACKNOWLEDGE = "then end this warning: sbusctl store acknowledge"

EFFECTS = {
    "presence": "jobs of a killed worker wait for the end of their leases",
    "vouch": "what users put is stored, but not published",
    "deliver": "new subscribers get no last values, and plain clients no jobs",
}
"""What fails without a right."""


def is_used(unit: Unit, main_file: Path) -> bool:
    """Return whether this bus is meant to have a store: the service is enabled, or its configuration has a stream or is invalid."""
    from sbus_programs.config.store import StoreSettings  # noqa: PLC0415 - needs pydantic, which is slow

    if is_enabled(unit):
        return True
    try:
        return bool(load_settings(main_file, StoreSettings).streams)
    except ConfigError:
        return True


def check_settings(scope: Literal["system", "user"], main_file: Path | None = None, bus_file: Path | None = None) -> list[Finding]:
    """Return the findings for the configuration, the disk and the rights of the store."""
    from sbus_programs.config.store import StoreSettings  # noqa: PLC0415

    try:
        file = main_file or default_main_file("store.toml", user_bus=scope == "user")
        with acting_as_user_of(UNIT, file):
            settings = load_settings(file, StoreSettings)
    except ConfigError as error:
        return [Finding("store.toml", CheckResult.FAIL, str(error), "see store.toml(5)")]
    of_streams = f"the configuration of the store is valid, streams: {len(settings.streams)}, queues: {len(settings.queues)}"
    configured = Finding("store.toml", CheckResult.OK, of_streams)
    if not settings.streams:
        configured = Finding("store.toml", CheckResult.WARN, "the store has no stream, so it stores nothing", "see store.toml(5), EXAMPLES")
    is_users_own = scope == "user" and settings.file == StoreSettings().file
    folder = Path.home() if is_users_own else Path(settings.file).parent
    files = _own_files() if is_users_own else [Path(settings.file)]
    return [configured, check_disk(folder), *check_kept_aside(files), *check_rights("sbus-store", scope, EFFECTS, bus_file)]


def _own_files() -> list[Path]:
    """Return where the service of a user has its file, by systemd.exec(5), ``StateDirectory=``: older versions use the second folder."""
    folders = (("XDG_STATE_HOME", ".local/state"), ("XDG_CONFIG_HOME", ".config"))
    return [Path(os.environ.get(name) or Path.home() / usual, "sbus-store", "store.sqlite") for name, usual in folders]


def check_kept_aside(files: Sequence[Path]) -> list[Finding]:
    """Return the finding for damaged files that the store has kept beside one of *files*, none if there are none."""
    from sbus_programs.config.store import KEPT_ASIDE  # noqa: PLC0415

    kept: dict[str, int] = {}
    for file in files:
        try:
            with os.scandir(file.parent) as found:
                kept |= {
                    each.path: each.stat(follow_symlinks=False).st_size for each in found if each.name.startswith(file.name + KEPT_ASIDE)
                }
        except FileNotFoundError:
            continue  # the store has not started yet, or just this file was deleted
        except OSError as error:
            reason = f"cannot look for damaged files in {printable(str(file.parent))}: {error.strerror}"
            return [Finding("damaged file", CheckResult.SKIP, reason, "run sbusctl doctor as root")]
    names = sorted(each for each in kept if not each.endswith("-wal"))
    if not names:
        return []
    newest, size = printable(names[-1]), human_bytes(sum(kept.values()))
    reason = f"{newest}, {size}, was found damaged and kept aside: its messages are not in the store"
    if len(names) > 1:
        reason = f"{human_plural(len(names), 'file')}, {size}, were found damaged and kept aside: the newest is {newest}"
    advice = f"look into it: sqlite3 {newest} .recover; then delete it and its -wal: see sbus-store(8), DURABILITY"
    return [Finding("damaged file", CheckResult.WARN, reason, advice)]


def check_disk(folder: Path) -> Finding:
    """Return the finding for the free space of the disk with *folder*."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return Finding("store disk", CheckResult.SKIP, f"cannot read the free space of {folder}: {error.strerror}")
    return judge_disk(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def judge_disk(free: int, size: int) -> Finding:
    """Judge a disk of *size* bytes with *free* bytes for the store."""
    reason = f"{human_bytes(free)} of {human_bytes(size)} are free"
    advice = "free some space, or remove old messages: sbusctl store purge STREAM"
    if free < FULL_BYTES:
        return Finding("store disk", CheckResult.FAIL, f"{reason}: the store rejects new messages", advice)
    if free < NEARLY_FULL_BYTES and free < size * NEARLY_FULL:
        return Finding("store disk", CheckResult.WARN, f"nearly full: {reason}", advice)
    return Finding("store disk", CheckResult.OK, reason)


def not_running(unit: Unit, scope: Literal["system", "user"], reason: str) -> list[Finding]:
    """Return the finding if no store serves the bus, for *reason*."""
    if is_enabled(unit) or unit.get("ActiveState") in ("failed", "activating"):
        # Its state has a finding of its own, with the reason.
        enabled = f"{UNIT} is {unit.get('ActiveState') or 'unknown'} and does not serve: {reason}"
        return [Finding("store", CheckResult.FAIL, enabled, repair_of(unit, UNIT, scope))]
    return [Finding("store", CheckResult.SKIP, f"{UNIT} is not enabled; to enable it: {systemctl_of(scope)} enable --now {UNIT}")]


def judge_state(state: JsonObject) -> list[Finding]:
    """Return the findings for the *state* of the store, sbus-store(8)."""
    findings = [Finding("store", CheckResult.OK, f"serves {human_plural(integer(state, 'messages') or 0, 'message')}")]
    if dead := integer(state, "dead_letters"):
        reason = f"{human_plural(dead, 'dead letter')}: jobs that failed too often and are not tried again"
        advice = "show them: sbusctl store peek --queue --state dead QUEUE; to try them again: sbusctl store revive QUEUE NUMBER"
        findings.append(Finding("dead letters", CheckResult.WARN, reason, advice))
    if gaps := integer(state, "open_gaps"):
        known = integer(state, "open_missing") or 0
        missing = f"at least {human_plural(known, 'message')}" if known else "an unknown number of messages"
        reason = f"{human_plural(gaps, 'gap')}, where {missing} {'were' if known > 1 else 'was'} not stored"
        advice = f"show them: sbusctl store read STREAM; {ACKNOWLEDGE}"
        findings.append(Finding("gaps", CheckResult.WARN, reason, advice))
    if damaged := integer(state, "open_damaged"):
        reason = f"{human_plural(damaged, 'message')} damaged on the disk: they are not delivered"
        advice = f"check the disk; the log of the store names the messages; {ACKNOWLEDGE}"
        findings.append(Finding("damaged messages", CheckResult.WARN, reason, advice))
    if state.get("date_doubted") is True:
        findings.append(date_doubted("store date", UNIT))
    if refused := integer(mapping(state, "counters"), "publications_refused"):
        reason = f"the bus refused {human_plural(refused, 'message')} that the store published: no subscriber got them"
        advice = "the log of the store has the reason; see the rules and quotas in sbusd.toml(5); the count begins again with the store"
        findings.append(Finding("refused messages", CheckResult.WARN, reason, advice))
    return findings
