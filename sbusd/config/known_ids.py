"""Removes users and groups that this machine does not know from settings. Spec: sbusd.toml(5), FAULTS.

A removed package may have removed its user, and a directory service may be down at boot. Neither prevents a bus from starting, and neither
opens what the configuration closes. A rule that allows something allows it to the known ones of its users. A rule that denies something
denies it to everyone, because the intended user cannot be found.
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
    """An unknown name: its dotted key, the file if the setting knows it, the reason, and the prefixes that are denied because of it."""

    key: str
    file: str
    reason: str
    denied: tuple[str, ...] = ()


def with_known_ids(settings: DaemonSettings) -> tuple[DaemonSettings, list[Unknown]]:
    """Return *settings* with known ids only, and the unknown names that were removed."""
    left_out = [*_in_lists(settings), *_in_rights(settings.rights), *_in_rules(settings.policy), *_in_overrides(settings.quotas.overrides)]
    rules = tuple(each for rule in settings.policy for each in _closed(rule))
    if len(rules) > MAX_RULES:
        # The first matching rule decides, so leaving out a rule that allows opens nothing.
        rules = tuple(each for rule in settings.policy for each in islice(_closed(rule), 1))
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


def _closed(rule: PolicyRule) -> Iterator[PolicyRule]:
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
