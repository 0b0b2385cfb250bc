"""The reason why a user may or may not publish to a key, or subscribe to a pattern: ``!/bus/explain``. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

import os
import pwd

from sbusd.broker.access import AccessRules
from sbusd.config.users import LAST_ID
from sbusd.protocol.credentials import Credentials
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import SECRET_HEAD

NO_ID = -2
"""A pid or gid that no process has. A request about a user in general matches no rule or key for a particular process."""

UNNAMED_USER = Credentials(NO_ID, NO_ID, NO_ID)
"""A user that no rule names: an empty uid in the request. The reply is true for all users, so every client may ask."""

_FORM = "the payload must be <uid> NUL publish or subscribe NUL <key>; an empty uid means a user that no rule names"


def explain(access: AccessRules, asker: Credentials, payload: bytes, *, is_owner: bool) -> dict[str, object]:
    """Return what *access* decides about the request *payload* of a client with the credentials *asker*.

    Raises:
        ProtocolError: EINVAL, the payload is not ``<uid> NUL publish|subscribe NUL <key>``; EPERM, a client that is not an owner
            asks about another user.
    """
    digits, _, rest = payload.partition(b"\0")
    action, nul, key = rest.partition(b"\0")
    uid = _uid(digits)
    if action not in (b"publish", b"subscribe") or not nul or b"\0" in key:
        raise ProtocolError(ErrorCode.EINVAL, _FORM)
    if uid is None:
        who = UNNAMED_USER
    elif uid == asker.uid:
        who = asker
    elif is_owner:
        who = credentials_of_user(uid)
    else:
        raise ProtocolError(ErrorCode.EPERM, "only owners can ask about other users")
    verdict = access.publication(key, who) if action == b"publish" else access.subscription(key, who)
    return {
        "uid": uid,
        "action": action.decode(),
        "key": key.decode("utf-8", "backslashreplace"),
        "allowed": verdict.is_allowed,
        "error": None if verdict.code is None else verdict.code.name,
        "rule": None if verdict.rule is None else verdict.rule.name,
        "reason": verdict.reason,
        **_effects(access, who, action, key),
    }


def _effects(access: AccessRules, who: Credentials, action: bytes, key: bytes) -> dict[str, object]:
    """Return what else the policy decides about the action.

    For a publisher: whether messages can wait for recipients of other users, and whether it may vouch. For a subscriber: whether it
    can block publishers of other users.
    """
    if action == b"publish":
        # Waiting would reveal to a publisher that a private key has a subscriber.
        waits = not (key.startswith(SECRET_HEAD) and access.keyspace.namespace(key) is not None)
        return {"waits_for_others": waits, "may_vouch": access.policy.may_vouch(who)}
    return {"blocks_others": access.policy.may_block_others(who)}


def _uid(digits: bytes) -> int | None:
    """Return the uid in *digits*, None if they are empty. Raises ProtocolError."""
    if not digits:
        return None
    uid = int(digits) if digits.isdigit() and len(digits) <= 10 else -1
    if not 0 <= uid <= LAST_ID:
        raise ProtocolError(ErrorCode.EINVAL, _FORM)
    return uid


def credentials_of_user(uid: int) -> Credentials:
    """Return the credentials of a new process of the user *uid* after a login, without its pid.

    The groups are those of the system's user database. An unknown user has no groups.
    """
    try:
        entry = pwd.getpwuid(uid)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OSError):
        return Credentials(NO_ID, uid, NO_ID)
    return Credentials(NO_ID, uid, entry.pw_gid, frozenset(groups))
