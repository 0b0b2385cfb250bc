"""Reads the configuration of a bus that has to start: a fault closes only what the faulty part was about. Spec: sbusd.toml(5), FAULTS.

The main file is written by the administrator, and a mistake in it is an error. Drop-ins come from many sources, such as packages, and are
removed with them. So a drop-in that cannot be used is left out, and a rule in its place denies the keys of its rules to everyone.

Users and groups may be unknown: a removed package may have removed its user, and a directory service may be down at boot. Neither prevents
a bus from starting, and neither opens what the configuration closes. A rule that allows something allows it to the known ones of its users.
A rule that denies something denies it to everyone, because the intended user cannot be found.

On a kernel that does not report the processes of peers, all units are unknown. The rules about them stay: the bus itself applies a rule
about units to clients of unknown units if it denies, and not if it allows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from sbus.protocol.printable import printable
from sbus_programs.config.configuration import Configuration, Fault
from sbus_programs.config.documents import RecoveredDropIn, Table, outermost, read_table, recover, settings_of
from sbus_programs.config.files import PATH_MAX, ConfigError, overridden
from sbus_programs.config.rules import MAX_PUBLISH_RULES, MAX_RULES, PolicyRule, RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings, QuotaOverride
from sbus_programs.config.users import NO_ID, UnknownId, unknown_ids_allowed

_SO_PEERPIDFD = 77
"""On every architecture of Linux but SPARC and PA-RISC."""

_PIDFD_BYTES = 4


def reports_processes() -> bool:
    """Return whether the kernel says which process has connected to a socket, SO_PEERPIDFD: since Linux 6.5."""
    own, other = socket.socketpair()
    with own, other:
        try:
            pidfd = own.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _PIDFD_BYTES)
        except OSError:
            return False
    os.close(int.from_bytes(pidfd, "little"))
    return True


_EVERYTHING = ("",)

_NO_UNITS = "this kernel does not report the processes of clients (Linux 6.5 does), so the units of all clients are unknown"

FileTable = tuple[Path, Table]


class _UnknownName(NamedTuple):
    """An unknown name: its dotted key, the file if the setting knows it, the reason, and the prefixes that are denied because of it."""

    key: str
    file: str
    reason: str
    denied: tuple[str, ...] = ()


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
    settings, unknown = _with_known_ids(read)
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


def _fault_of(unknown: _UnknownName, tables: list[FileTable]) -> Fault:
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


def _with_known_ids(settings: DaemonSettings) -> tuple[DaemonSettings, list[_UnknownName]]:
    """Return *settings* with known ids only, and the unknown names that were removed."""
    left_out = [*_in_lists(settings), *_in_rights(settings.rights), *_in_rules(settings.policy), *_in_overrides(settings.quotas.overrides)]
    rules = tuple(each for rule in settings.policy for each in _closed_rule(rule))
    if len(rules) > MAX_RULES:
        # The first matching rule decides, so leaving out a rule that allows opens nothing.
        rules = tuple(each for rule in settings.policy for each in islice(_closed_rule(rule), 1))
    known = replace(
        settings,
        # An empty list would let every user connect.
        allowed_users=_known(settings.allowed_users) or (settings.allowed_users and (NO_ID,)),
        admins=_known(settings.admins),
        protected_users=_known(settings.protected_users),
        rights=replace(settings.rights, **{each.name: _subjects(getattr(settings.rights, each.name)) for each in fields(RightsSettings)}),
        policy=rules,
        quotas=replace(settings.quotas, overrides=tuple(each for override in settings.quotas.overrides for each in _reduced(override))),
    )
    return known, [each for each in left_out if each.reason]


def _known(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ids of known users or groups."""
    return tuple(each for each in ids if not isinstance(each, UnknownId))


def _unknown(ids: tuple[int, ...]) -> list[str]:
    """Return the reason of each unknown id."""
    return [each.reason for each in ids if isinstance(each, UnknownId)]


def _subjects(subjects: Subjects) -> Subjects:
    """Return the known ones of *subjects*."""
    return Subjects(_known(subjects.users), _known(subjects.groups))


def _closed_rule(rule: PolicyRule) -> Iterator[PolicyRule]:
    """Return *rule* itself, or if it has unknown ids, a denial for everyone and an allowance for the known ones."""
    users, groups = _known(rule.users), _known(rule.groups)
    if (users, groups) == (rule.users, rule.groups):
        yield rule
        return
    denial = _part(rule, "deny")
    if denial is not None:
        yield replace(denial, users=(), groups=())
    allowance = _part(rule, "allow")
    if allowance is not None and (users or groups):
        yield replace(allowance, users=users, groups=groups)


def _part(rule: PolicyRule, word: str) -> PolicyRule | None:
    """Return the part of *rule* with the decision *word*, or None if there is none."""
    publish = rule.publish if rule.publish == word else None
    subscribe = rule.subscribe if rule.subscribe == word else None
    return None if publish is None and subscribe is None else replace(rule, publish=publish, subscribe=subscribe)


def _reduced(override: QuotaOverride) -> Iterator[QuotaOverride]:
    """Return *override* for the known ids, or nothing: without any name it would apply to everyone."""
    users, groups = _known(override.users), _known(override.groups)
    if users or groups or not (override.users or override.groups):
        yield replace(override, users=users, groups=groups)


def _in_lists(settings: DaemonSettings) -> Iterator[_UnknownName]:
    for key in ("allowed_users", "admins", "protected_users"):
        for reason in _unknown(getattr(settings, key)):
            yield _UnknownName(key, "", reason)


def _in_rights(rights: RightsSettings) -> Iterator[_UnknownName]:
    for each in fields(RightsSettings):
        subjects = getattr(rights, each.name)
        for key in ("users", "groups"):
            for reason in _unknown(getattr(subjects, key)):
                yield _UnknownName(f"rights.{each.name}.{key}", "", reason)


def _in_rules(rules: tuple[PolicyRule, ...]) -> Iterator[_UnknownName]:
    has_units = not any(rule.units for rule in rules) or reports_processes()
    for rule in rules:
        denied = () if _part(rule, "deny") is None else (rule.keys,)
        if rule.units and not has_units:
            yield _UnknownName(f"policy.{rule.origin.number}.units", rule.origin.file, _NO_UNITS, denied)
        for key in ("users", "groups"):
            for reason in _unknown(getattr(rule, key)):
                yield _UnknownName(f"policy.{rule.origin.number}.{key}", rule.origin.file, reason, denied)


def _in_overrides(overrides: tuple[QuotaOverride, ...]) -> Iterator[_UnknownName]:
    for override in overrides:
        for key in ("users", "groups"):
            for reason in _unknown(getattr(override, key)):
                yield _UnknownName(f"quotas.overrides.{override.origin.number}.{key}", override.origin.file, reason)
