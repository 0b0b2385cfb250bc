"""Reading the configuration of a bus that has to start: what is wrong with a drop-in closes what it was about, and no more.

The main file is the administrator's own word on what bus this is: a mistake there is an error. Drop-ins come from many hands, packages
among them, and go with them. So one that cannot be used is left out, and a rule in its place denies the keys of its rules to everyone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sbusd.config.content import Table
from sbusd.config.documents import read_table, settings_of
from sbusd.config.errors import PATH_MAX, ConfigError
from sbusd.config.faults import Configuration, Fault
from sbusd.config.files import overridden
from sbusd.config.known import Unknown, with_known_ids
from sbusd.config.rules import MAX_PUBLISH_RULES, MAX_RULES
from sbusd.config.salvage import Remains, outermost, remains_of
from sbusd.config.settings import DaemonSettings
from sbusd.config.unknown_ids import tolerated
from sbusd.protocol.printable import printable

_EVERYTHING = ("",)

FileTable = tuple[Path, Table]


def read_tolerantly(main_file: Path, files: Sequence[Path], held: Configuration | None = None) -> Configuration:
    """Return the configuration in *files*, of which *main_file* is the main one, if it is among them at all.

    *held* is the configuration of a running bus: from it comes what a drop-in was about that could be read before.

    Raises:
        ConfigError: the main file is wrong.
    """
    held = held or Configuration(DaemonSettings())
    faults: list[Fault] = []
    with tolerated():
        try:
            tables = [(file, read_table(file)) for file in files]
            read = settings_of(tables, DaemonSettings)
        except ConfigError:
            # One after the other, to find out which.
            tables, faults = _usable(main_file, files, held)
            read = settings_of(tables, DaemonSettings)
    settings, unknown = with_known_ids(read)
    faults += [_fault_of(each, tables) for each in unknown]
    allowed_users = {file: table["allowed_users"] for file, table in tables if table.get("allowed_users")}
    return Configuration(settings, tuple(files), tuple(faults), allowed_users)


def _usable(main_file: Path, files: Sequence[Path], held: Configuration) -> tuple[list[FileTable], list[Fault]]:
    """Return tables that are valid together, and the faults of files that another table replaces."""
    tables: list[FileTable] = []
    faults: list[Fault] = []
    for file in files:
        try:
            # With those before: two that are right alone can be wrong together, and then the later one goes.
            candidate = [*tables, (file, read_table(file))]
            settings_of(candidate, DaemonSettings)
        except ConfigError as error:
            if file == main_file:
                raise
            candidate, denied = _closed(tables, file, _remains(main_file, file, held))
            # Of two files together the last is blamed, which is this one.
            faults.append(Fault(file, Fault.of(error, ()).reason, denied))
        tables = candidate
    return tables, faults


def _remains(main_file: Path, file: Path, held: Configuration) -> Remains:
    """Return what is known of a broken drop-in: from itself, from those that it overrides, and from what held so far."""
    own = remains_of(file)
    below = [remains_of(each) for each in overridden(main_file, file)]
    origin = printable(str(file), PATH_MAX)
    before = tuple(rule.keys for rule in held.settings.policy if rule.origin.file == origin)
    prefixes = own.prefixes if own.prefixes is not None else before or None
    for each in below:
        prefixes = None if prefixes is None or each.prefixes is None else prefixes + each.prefixes
    users = _allowed_users(own, held.allowed_users.get(file, ()), below)
    return Remains(None if prefixes is None else outermost(prefixes + before), users)


def _allowed_users(own: Remains, before: Sequence[int | str], below: Sequence[Remains]) -> list[Any] | None:
    """Return who may connect in place of what a broken drop-in says: its own word, that of *before*, nobody, or those *below*."""
    if own.allowed_users is not None and not own.has_unknown_users:
        return own.allowed_users
    candidates = (before, own.allowed_users, *(each.allowed_users for each in below))
    return next((list(users) for users in candidates if users), None)


def _closed(tables: list[FileTable], file: Path, remains: Remains) -> tuple[list[FileTable], tuple[str, ...]]:
    """Return *tables* with one for *file* that closes what that was about, and which prefixes that denies."""
    table: Table = {} if remains.allowed_users is None else {"allowed_users": remains.allowed_users}
    prefixes = _EVERYTHING if remains.prefixes is None else remains.prefixes
    if not prefixes:
        return [*tables, (file, table)], ()
    # The number of rules is limited; one rule that denies more may fit.
    denied = next((each for each in (prefixes, _joined(prefixes)) if _has_room(tables, len(each))), None)
    if denied is None:
        denied, tables = _EVERYTHING, _with_room(tables)
    comment = f"denied because of a fault in {printable(file.name, 100)}"
    table["policy"] = [{"keys": each, "publish": "deny", "subscribe": "deny", "comment": comment} for each in denied]
    return [*tables, (file, table)], denied


def _has_room(tables: Sequence[FileTable], more: int) -> bool:
    """Return whether so many *more* denials can stand behind the rules of *tables*."""
    rules = [rule for _, table in tables for rule in table.get("policy", ())]
    publishing = sum("publish" in rule for rule in rules)
    return len(rules) + more <= MAX_RULES and publishing + more <= MAX_PUBLISH_RULES


def _with_room(tables: Sequence[FileTable]) -> list[FileTable]:
    """Return *tables* without so many of their last rules that a denial has room. It has to deny every key, for those denied some."""
    kept: list[FileTable] = []
    room, publishing_room = MAX_RULES - 1, MAX_PUBLISH_RULES - 1
    for file, table in tables:
        rules: list[Table] = []
        for rule in table.get("policy", ()):
            room -= 1
            publishing_room -= "publish" in rule
            # Once it is used up, no rule behind has room either.
            if room < 0 or publishing_room < 0:
                room = 0
                break
            rules.append(rule)
        kept.append((file, table | {"policy": rules}))
    return kept


def _joined(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the longest prefix of all *prefixes*, which are sorted, if there are any."""
    # Of characters, not of segments: that is what keys are compared by.
    return prefixes and (os.path.commonprefix([prefixes[0], prefixes[-1]]),)  # noqa: RUF071


def _fault_of(unknown: Unknown, tables: list[FileTable]) -> Fault:
    """Return the fault of a name that is not known; its file is the last one that has its key, unless the setting itself knows."""
    path = unknown.key.split(".")
    file = _last_with(tables, path) or tables[-1][0]
    return Fault(Path(unknown.file) if unknown.file else file, f"{unknown.key}: {unknown.reason}", unknown.denied)


def _last_with(tables: Sequence[FileTable], path: list[str]) -> Path | None:
    """Return the last file that has the key *path*: its value holds."""
    return next((file for file, table in reversed(tables) if _has(table, path)), None)


def _has(table: Table, path: list[str]) -> bool:
    """Return whether *table* has the key *path*."""
    here: object = table
    for part in path:
        if not isinstance(here, dict) or part not in here:
            return False
        here = here[part]
    return True
