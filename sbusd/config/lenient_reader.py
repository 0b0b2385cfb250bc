"""Reads the configuration of a bus that has to start: a fault in a drop-in closes only what the drop-in was about.

The main file is written by the administrator, and a mistake in it is an error. Drop-ins come from many sources, such as packages, and are
removed with them. So a drop-in that cannot be used is left out, and a rule in its place denies the keys of its rules to everyone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sbusd.config.content import Table
from sbusd.config.documents import read_table, settings_of
from sbusd.config.drop_in_recovery import RecoveredDropIn, outermost, recover
from sbusd.config.faults import Configuration, Fault
from sbusd.config.files import PATH_MAX, ConfigError, overridden
from sbusd.config.known_ids import Unknown, with_known_ids
from sbusd.config.rules import MAX_PUBLISH_RULES, MAX_RULES
from sbusd.config.settings import DaemonSettings
from sbusd.config.unknown_ids import unknown_ids_allowed
from sbusd.protocol.printable import printable

_EVERYTHING = ("",)

FileTable = tuple[Path, Table]


def read_leniently(main_file: Path, files: Sequence[Path], held: Configuration | None = None) -> Configuration:
    """Return the configuration in *files*, of which *main_file* is the main one, if it is among them.

    *held* is the current configuration of a bus that reloads. It has the last valid rules of a drop-in that is now broken.

    Raises:
        ConfigError: the main file is invalid.
    """
    held = held or Configuration(DaemonSettings())
    faults: list[Fault] = []
    with unknown_ids_allowed():
        try:
            tables = [(file, read_table(file)) for file in files]
            read = settings_of(tables, DaemonSettings)
        except ConfigError:
            # Read one after another to find the invalid ones.
            tables, faults = _usable(main_file, files, held)
            read = settings_of(tables, DaemonSettings)
    settings, unknown = with_known_ids(read)
    faults += [_fault_of(each, tables) for each in unknown]
    allowed_users = {file: table["allowed_users"] for file, table in tables if table.get("allowed_users")}
    return Configuration(settings, tuple(files), tuple(faults), allowed_users)


def _usable(main_file: Path, files: Sequence[Path], held: Configuration) -> tuple[list[FileTable], list[Fault]]:
    """Return tables that are valid together, and the faults of the files that are replaced."""
    tables: list[FileTable] = []
    faults: list[Fault] = []
    for file in files:
        try:
            # Together with the earlier ones: two valid files can be invalid together, and then the later one is replaced.
            candidate = [*tables, (file, read_table(file))]
            settings_of(candidate, DaemonSettings)
        except ConfigError as error:
            if file == main_file:
                raise
            candidate, denied = _closed(tables, file, _recover(main_file, file, held))
            # An error of two files together belongs to the last one, which is this.
            faults.append(Fault(file, Fault.of(error, ()).reason, denied))
        tables = candidate
    return tables, faults


def _recover(main_file: Path, file: Path, held: Configuration) -> RecoveredDropIn:
    """Return what is known about a broken drop-in: from its own text, from the files that it overrides, and from *held*."""
    own = recover(file)
    below = [recover(each) for each in overridden(main_file, file)]
    origin = printable(str(file), PATH_MAX)
    before = tuple(rule.keys for rule in held.settings.policy if rule.origin.file == origin)
    prefixes = own.prefixes if own.prefixes is not None else before or None
    for each in below:
        prefixes = None if prefixes is None or each.prefixes is None else prefixes + each.prefixes
    users = _allowed_users(own, held.allowed_users.get(file, ()), below)
    return RecoveredDropIn(None if prefixes is None else outermost(prefixes + before), users)


def _allowed_users(own: RecoveredDropIn, before: Sequence[int | str], below: Sequence[RecoveredDropIn]) -> list[Any] | None:
    """Return the allowed users in place of a broken drop-in: its own, those *before*, no user at all, or those of the files *below*."""
    if own.allowed_users is not None and not own.has_unknown_users:
        return own.allowed_users
    candidates = (before, own.allowed_users, *(each.allowed_users for each in below))
    return next((list(users) for users in candidates if users), None)


def _closed(tables: list[FileTable], file: Path, recovered: RecoveredDropIn) -> tuple[list[FileTable], tuple[str, ...]]:
    """Return *tables* with one in place of *file* that denies the keys of its rules, and the denied prefixes."""
    table: Table = {} if recovered.allowed_users is None else {"allowed_users": recovered.allowed_users}
    prefixes = _EVERYTHING if recovered.prefixes is None else recovered.prefixes
    if not prefixes:
        return [*tables, (file, table)], ()
    # The number of rules is limited. One rule that denies more may fit.
    denied = next((each for each in (prefixes, _joined(prefixes)) if _has_room(tables, len(each))), None)
    if denied is None:
        denied, tables = _EVERYTHING, _with_room(tables)
    comment = f"denied because of a fault in {printable(file.name, 100)}"
    table["policy"] = [{"keys": each, "publish": "deny", "subscribe": "deny", "comment": comment} for each in denied]
    return [*tables, (file, table)], denied


def _has_room(tables: Sequence[FileTable], more: int) -> bool:
    """Return whether there is room for *more* denials after the rules of *tables*."""
    rules = [rule for _, table in tables for rule in table.get("policy", ())]
    publishing = sum("publish" in rule for rule in rules)
    return len(rules) + more <= MAX_RULES and publishing + more <= MAX_PUBLISH_RULES


def _with_room(tables: Sequence[FileTable]) -> list[FileTable]:
    """Return *tables* without their last rules, to make room for one denial of every key, because the removed rules denied some."""
    kept: list[FileTable] = []
    room, publishing_room = MAX_RULES - 1, MAX_PUBLISH_RULES - 1
    for file, table in tables:
        rules: list[Table] = []
        for rule in table.get("policy", ()):
            room -= 1
            publishing_room -= "publish" in rule
            # The rules after this one have no room either.
            if room < 0 or publishing_room < 0:
                room = 0
                break
            rules.append(rule)
        kept.append((file, table | {"policy": rules}))
    return kept


def _joined(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the longest common prefix of the sorted *prefixes*, if there are any."""
    # By characters, not by segments, as keys are compared.
    return prefixes and (os.path.commonprefix([prefixes[0], prefixes[-1]]),)  # noqa: RUF071


def _fault_of(unknown: Unknown, tables: list[FileTable]) -> Fault:
    """Return the fault of an unknown name. Its file is the last one with its key, unless the setting knows the file."""
    path = unknown.key.split(".")
    file = _last_with(tables, path) or tables[-1][0]
    return Fault(Path(unknown.file) if unknown.file else file, f"{unknown.key}: {unknown.reason}", unknown.denied)


def _last_with(tables: Sequence[FileTable], path: list[str]) -> Path | None:
    """Return the last file that has the key *path*: its value is used."""
    return next((file for file, table in reversed(tables) if _has(table, path)), None)


def _has(table: Table, path: list[str]) -> bool:
    """Return whether *table* has the key *path*."""
    here: object = table
    for part in path:
        if not isinstance(here, dict) or part not in here:
            return False
        here = here[part]
    return True
