"""The reason why a user may or may not publish to a key, or subscribe to a pattern: ``!/bus/explain``. Spec: sbus-protocol(7) §6.

The groups of another user are those that the kernel reported for its latest connection, or that the client names. They are never looked up
here: the user database can be a directory service that takes seconds, or that is itself a client of the bus, and no message is routed
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sbus.protocol.credentials import Credentials
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import SECRET_HEAD
from sbus_programs.config.rules import is_unit
from sbus_programs.config.users import LAST_ID
from sbusd.broker.access import NO_ID, AccessRules
from sbusd.broker.events import key_members
from sbusd.broker.request_bounds import PAYLOAD_BYTES, check_key

UNNAMED_USER = Credentials(NO_ID, NO_ID, NO_ID, unit="")
"""A user that no rule names, in no unit: an empty uid in the request. The reply is true for all users, so every client may ask."""

MAX_LISTED_GROUPS = 256
"""Maximum number of groups in a reply."""

_FORM = (
    "the payload must be <uid> NUL publish or subscribe NUL <key>, and after another NUL there can be a unit; "
    "an empty uid means a user that no rule names, and after the uid there can be a colon and ids of groups with commas between them"
)


@dataclass(frozen=True, slots=True)
class KnownUsers:
    """What a bus knows about users: whether one is an owner, and the credentials of its latest connection, None if there is none."""

    owns: Callable[[int], bool] = lambda _uid: False
    latest: Callable[[int], Credentials | None] = lambda _uid: None


def explain(
    access: AccessRules, asker: Credentials, payload: bytes, *, is_owner: bool, known: KnownUsers | None = None
) -> dict[str, object]:
    """Return what *access* decides about the request *payload* of a client with the credentials *asker*.

    Raises:
        ProtocolError: EINVAL, the payload is not ``<uid>[:<gid>,…] NUL publish|subscribe NUL <key>``, with or without ``NUL <unit>``;
            EPERM, a client that is neither an owner nor has the right ``deliver`` asks about another user, or names groups;
            EMSGSIZE, the key is too long.
    """
    known = known or KnownUsers()
    user, _, rest = payload.partition(b"\0")
    action, nul, rest = rest.partition(b"\0")
    key, has_unit, unit = rest.partition(b"\0")
    check_key(key, access.key_bytes)
    digits, names_groups, ids = user.partition(b":")
    uid = _id(digits)
    groups = _groups(ids) if names_groups else ()
    source: str | None = "connection"
    if (
        action not in (b"publish", b"subscribe")
        or not nul
        or (uid is None and groups)
        or (unit and not is_unit(unit[:PAYLOAD_BYTES].decode("ascii", "replace")))
    ):
        raise ProtocolError(ErrorCode.EINVAL, _FORM)
    if uid is None:
        who, source = UNNAMED_USER, None
    elif uid == asker.uid and not groups:
        who = asker
    elif not (is_owner or access.policy.may_deliver(asker)):
        raise ProtocolError(ErrorCode.EPERM, "only owners and users with the deliver right can ask about other users, or name groups")
    elif groups:
        who, source = Credentials(NO_ID, uid, groups[0], frozenset(groups)), "request"
    elif (latest := known.latest(uid)) is not None:
        who = latest._replace(pid=NO_ID, unit=None)
    else:
        who, source = Credentials(NO_ID, uid, NO_ID), None
    if has_unit:
        who = who._replace(unit=unit.decode())
    verdict = access.publication(key, who) if action == b"publish" else access.subscription(key, who)
    return {
        "uid": uid,
        "action": action.decode(),
        "key": key.decode("utf-8", "backslashreplace"),
        "unit": who.unit,
        "groups": sorted({who.gid, *who.groups} - {NO_ID})[:MAX_LISTED_GROUPS],
        "groups_from": source,
        "allowed": verdict.is_allowed,
        "error": None if verdict.code is None else verdict.code.name,
        "rule": None if verdict.rule is None else verdict.rule.name,
        "reason": verdict.reason,
        "owner": uid is not None and known.owns(uid),
        **_effects(access, who, action, key),
    }


def _effects(access: AccessRules, who: Credentials, action: bytes, key: bytes) -> dict[str, object]:
    """Return what else the policy decides about the action.

    For a publisher: whether messages can wait for recipients of other users, whether it may vouch and send direct messages, and the
    keys for which the same is decided. For a subscriber: whether it can block publishers of other users.
    """
    if action == b"publish":
        # Waiting would reveal to a publisher that a private key has a subscriber.
        waits = not (key.startswith(SECRET_HEAD) and access.keyspace.namespace(key) is not None)
        policy = access.policy
        found: dict[str, object] = {"waits_for_others": waits, "may_vouch": policy.may_vouch(who), "may_deliver": policy.may_deliver(who)}
        prefix = policy.publication_prefix(key, who) if access.keyspace.namespace(key) is None else None
        return found if prefix is None else found | key_members("prefix", prefix)
    return {"blocks_others": access.policy.may_block_others(who)}


def _id(digits: bytes) -> int | None:
    """Return the id in *digits*, None if they are empty. Raises ProtocolError."""
    if not digits:
        return None
    uid = int(digits) if digits.isdigit() and len(digits) <= 10 else -1
    if not 0 <= uid <= LAST_ID:
        raise ProtocolError(ErrorCode.EINVAL, _FORM)
    return uid


def _groups(ids: bytes) -> tuple[int, ...]:
    """Return the groups that a request names, the user's own one first. Raises ProtocolError."""
    found = tuple(each for digits in ids.split(b",") if (each := _id(digits)) is not None)
    if len(found) <= ids.count(b","):
        raise ProtocolError(ErrorCode.EINVAL, _FORM)
    return found
