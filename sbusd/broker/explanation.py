"""Why a user may or may not publish to a key or subscribe to a pattern: ``!/bus/explain``. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

import os
import pwd

from sbusd.broker.access import Acceptance
from sbusd.config.users import LAST_UID
from sbusd.protocol.credentials import Credentials
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import SECRET_HEAD

NO_ID = -2
"""A process or group that nobody is in: what is asked about a user in general is true of none of its processes in particular."""

THE_PUBLIC = Credentials(NO_ID, NO_ID, NO_ID)
"""Somebody whom no rule names, as asked about with an empty uid. What holds then holds for everyone, so anyone may ask."""

_FORM = "the payload must be <uid> NUL publish or subscribe NUL <key>; an empty uid means a user that no rule names"


def explain(acceptance: Acceptance, asker: Credentials, payload: bytes, *, is_owner: bool) -> dict[str, object]:
    """Return what *acceptance* says to the question *payload* of a client with the credentials *asker*.

    Raises:
        ProtocolError: EINVAL, the payload is not ``<uid> NUL publish|subscribe NUL <key>``; EPERM, who is not an owner asks about
            another user.
    """
    digits, _, rest = payload.partition(b"\0")
    action, nul, key = rest.partition(b"\0")
    uid = _uid(digits)
    if action not in (b"publish", b"subscribe") or not nul or b"\0" in key:
        raise ProtocolError(ErrorCode.EINVAL, _FORM)
    if uid is None:
        who = THE_PUBLIC
    elif uid == asker.uid:
        who = asker
    elif is_owner:
        who = credentials_of_user(uid)
    else:
        raise ProtocolError(ErrorCode.EPERM, "only owners can ask about other users")
    verdict = acceptance.publication(key, who) if action == b"publish" else acceptance.subscription(key, who)
    return {
        "uid": uid,
        "action": action.decode(),
        "key": key.decode("utf-8", "backslashreplace"),
        "allowed": verdict.is_allowed,
        "error": None if verdict.code is None else verdict.code.name,
        "rule": None if verdict.rule is None else verdict.rule.name,
        "reason": verdict.reason,
        **_blocking(acceptance, who, action, key),
    }


def _blocking(acceptance: Acceptance, who: Credentials, action: bytes, key: bytes) -> dict[str, object]:
    """Return whether a publisher's messages can wait for recipients of other users, or a subscriber can block publishers of others."""
    if action == b"publish":
        # That it waits would tell a publisher that a secret key has a subscriber.
        return {"waits_for_others": not (key.startswith(SECRET_HEAD) and acceptance.keyspace.namespace(key) is not None)}
    return {"blocks_others": acceptance.policy.may_block_others(who)}


def _uid(digits: bytes) -> int | None:
    """Return the uid that *digits* spell, None if they are none. Raises ProtocolError."""
    if not digits:
        return None
    uid = int(digits) if digits.isdigit() and len(digits) <= 10 else -1
    if not 0 <= uid <= LAST_UID:
        raise ProtocolError(ErrorCode.EINVAL, _FORM)
    return uid


def credentials_of_user(uid: int) -> Credentials:
    """Return what a new process of the user *uid* would have after a login, but for its number.

    The groups are those of the system's user database; a user that it does not know is in none.
    """
    try:
        entry = pwd.getpwuid(uid)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OSError):
        return Credentials(NO_ID, uid, NO_ID)
    return Credentials(NO_ID, uid, entry.pw_gid, frozenset(groups))
