"""Reading the configuration of a bus that has to start: what is wrong with a drop-in closes what it was about, and no more.

The main file is the administrator's own word on what bus this is: a mistake there is an error. Drop-ins come from many hands, packages
among them, and go with them. So one that cannot be used is left out, and a rule in its place denies the keys of its rules to everyone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sbusd.config.content import Table
from sbusd.config.documents import read_table, settings_of
from sbusd.config.errors import PATH_MAX, ConfigError
from sbusd.config.faults import Configuration, Fault
from sbusd.config.files import overridden
from sbusd.config.known import Unknown, with_known_ids
from sbusd.config.rules import PolicyRule
from sbusd.config.salvage import Remains, outermost, remains_of
from sbusd.config.settings import DaemonSettings
from sbusd.config.unknown_ids import tolerated
from sbusd.protocol.printable import printable

_EVERYTHING = ("",)

FileTable = tuple[Path, Table]


def read_tolerantly(main_file: Path, files: Sequence[Path], held: Sequence[PolicyRule] = ()) -> Configuration:
    """Return the configuration in *files*, of which *main_file* is the main one, if it is among them at all.

    *held* are the rules that a running bus holds to: from them come the keys of a drop-in that could be read before.

    Raises:
        ConfigError: the main file is wrong.
    """
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
    return Configuration(settings, tuple(files), tuple(faults))


def _usable(main_file: Path, files: Sequence[Path], held: Sequence[PolicyRule]) -> tuple[list[FileTable], list[Fault]]:
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
            remains = _remains(main_file, file, held)
            table, denied = _stand_in(tables, file, remains, error)
            candidate = [*tables, (file, table)]
            # Of two files together the last is blamed, which is this one.
            faults.append(Fault(file, Fault.of(error, ()).reason, denied))
        tables = candidate
    return tables, faults


def _remains(main_file: Path, file: Path, held: Sequence[PolicyRule]) -> Remains:
    """Return what is known of a broken drop-in: from itself, from those that it overrides, and from what held so far."""
    own = remains_of(file)
    origin = printable(str(file), PATH_MAX)
    before = tuple(rule.keys for rule in held if rule.origin.file == origin)
    prefixes = own.prefixes if own.prefixes is not None else before or None
    for each in overridden(main_file, file):
        below = remains_of(each).prefixes
        prefixes = None if prefixes is None or below is None else prefixes + below
    return Remains(None if prefixes is None else outermost(prefixes + before), own.allowed_users)


def _stand_in(tables: list[FileTable], file: Path, remains: Remains, error: ConfigError) -> tuple[Table, tuple[str, ...]]:
    """Return a table that closes what *file* was about, and which prefixes that denies. Raises *error* if there is room for no rule."""
    prefixes = _EVERYTHING if remains.prefixes is None else remains.prefixes
    # The number of rules is limited; one rule that denies more may fit.
    for denied in (prefixes, _joined(prefixes)):
        comment = f"{printable(file.name, 100)} has a fault, so this is denied"
        table: Table = {}
        if denied:
            table["policy"] = [{"keys": each, "publish": "deny", "subscribe": "deny", "comment": comment} for each in denied]
        if remains.allowed_users is not None:
            table["allowed_users"] = remains.allowed_users
        try:
            settings_of([*tables, (file, table)], DaemonSettings)
        except ConfigError:
            continue
        return table, denied
    raise error


def _joined(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the longest prefix of all *prefixes*, which are sorted, if there are any."""
    # Of characters, not of segments: that is what keys are compared by.
    return prefixes and (os.path.commonprefix([prefixes[0], prefixes[-1]]),)  # noqa: RUF071


def _fault_of(unknown: Unknown, tables: list[FileTable]) -> Fault:
    """Return the fault of a name that is not known; its file is the last one that has its key, unless the setting itself knows."""
    path = unknown.key.split(".")
    file = next((file for file, table in reversed(tables) if _has(table, path)), tables[-1][0])
    return Fault(Path(unknown.file) if unknown.file else file, f"{unknown.key}: {unknown.reason}", unknown.denied)


def _has(table: Table, path: list[str]) -> bool:
    """Return whether *table* has the key *path*."""
    here: object = table
    for part in path:
        if not isinstance(here, dict) or part not in here:
            return False
        here = here[part]
    return True
