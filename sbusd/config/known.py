"""Settings without the users and groups that this machine does not know. Spec: sbusd.toml(5), FAULTS.

A package that is removed may take its user with it, and a directory service may be down when the machine starts. Neither keeps a bus
from starting, and neither opens what the configuration closes: what a rule allows is allowed to those of its users that are known;
what it denies is denied to everyone, because the user that was meant cannot be found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import islice
from typing import NamedTuple

from sbusd.config.quotas import QuotaOverride
from sbusd.config.rules import MAX_RULES, PolicyRule, RightsSettings, Subjects
from sbusd.config.settings import DaemonSettings
from sbusd.config.unknown_ids import NO_ID, UnknownId


class Unknown(NamedTuple):
    """A name that is not known: where it stands, dotted; the file if the setting itself knows it; why; and what is denied for it."""

    key: str
    file: str
    reason: str
    denied: tuple[str, ...] = ()


def with_known_ids(settings: DaemonSettings) -> tuple[DaemonSettings, list[Unknown]]:
    """Return *settings* in which every id is that of a user or group, and what was left out for that."""
    left_out = [*_in_lists(settings), *_in_rights(settings.rights), *_in_rules(settings.policy), *_in_overrides(settings.quotas.overrides)]
    rules = tuple(each for rule in settings.policy for each in _closed(rule))
    if len(rules) > MAX_RULES:
        # Where the first rule decides, a rule that allows can be left out, and nothing is open that was not.
        rules = tuple(each for rule in settings.policy for each in islice(_closed(rule), 1))
    known = replace(
        settings,
        # Without anybody in the list everyone could connect.
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
    """Return those of *subjects* that are known."""
    return Subjects(_known(subjects.users), _known(subjects.groups))


def _closed(rule: PolicyRule) -> Iterator[PolicyRule]:
    """Return the rules that *rule* is: itself, or what it allows to those who are known, and what it denies to everyone."""
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
    """Return *rule* as far as its decision is *word*, or None if none is."""
    publish = rule.publish if rule.publish == word else None
    subscribe = rule.subscribe if rule.subscribe == word else None
    return None if publish is None and subscribe is None else replace(rule, publish=publish, subscribe=subscribe)


def _reduced(override: QuotaOverride) -> Iterator[QuotaOverride]:
    """Return *override* for those who are known, or nothing: without any name it would be about everyone."""
    users, groups = _known(override.users), _known(override.groups)
    if users or groups or not (override.users or override.groups):
        yield replace(override, users=users, groups=groups)


def _in_lists(settings: DaemonSettings) -> Iterator[Unknown]:
    for key in ("allowed_users", "admins", "protected_users"):
        for reason in _unknown(getattr(settings, key)):
            yield Unknown(key, "", reason)


def _in_rights(rights: RightsSettings) -> Iterator[Unknown]:
    for each in fields(RightsSettings):
        subjects = getattr(rights, each.name)
        for key in ("users", "groups"):
            for reason in _unknown(getattr(subjects, key)):
                yield Unknown(f"rights.{each.name}.{key}", "", reason)


def _in_rules(rules: tuple[PolicyRule, ...]) -> Iterator[Unknown]:
    for rule in rules:
        denied = () if _part(rule, "deny") is None else (rule.keys,)
        for key in ("users", "groups"):
            for reason in _unknown(getattr(rule, key)):
                yield Unknown(f"policy.{rule.origin.number}.{key}", rule.origin.file, reason, denied)


def _in_overrides(overrides: tuple[QuotaOverride, ...]) -> Iterator[Unknown]:
    for override in overrides:
        for key in ("users", "groups"):
            for reason in _unknown(getattr(override, key)):
                yield Unknown(f"quotas.overrides.{override.origin.number}.{key}", override.origin.file, reason)
