"""Calls to the bus whose answers are more than one payload: receipts, members, the own address. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable

from sbusd.client.errors import RemoteRefusal, Unanswered
from sbusd.client.pending_replies import Call, Expects
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError, SbusError
from sbusd.protocol.peers import Peer, make_peer

_MOST_DIGITS = 20
"""Digits of a number of 64 bits."""

_WITHHELD = b"-"
"""What a receipt has in place of a number that this client may not know."""


class AddressCall(Call):
    """``!/conn/whoami``; *learn* is told the address as soon as it is there, before anybody else."""

    __slots__ = ("_learn",)

    def __init__(self, learn: Callable[[bytes], None]) -> None:
        super().__init__(f"CMSG {repr(controls.ADDRESS)[1:]}", Expects.ANSWER, controls.ADDRESS)
        self._learn = learn

    def finish(self, answer: bytes = b"", error: SbusError | None = None) -> None:
        """Settle the call, unless it is settled already. Raises ProtocolError if the answer is no address."""
        if error is None and not self.is_done:
            self._learn(answer)
        super().finish(answer, error)


class FeaturesCall(Call):
    """``!/bus/features``; *learn* is told their names, none where the bus does not know the question, and None if nobody knows."""

    __slots__ = ("_learn",)

    def __init__(self, learn: Callable[[frozenset[bytes] | None], None]) -> None:
        super().__init__(f"CMSG {repr(controls.FEATURES)[1:]}", Expects.ANSWER, controls.FEATURES)
        self._learn = learn

    def finish(self, answer: bytes = b"", error: SbusError | None = None) -> None:
        """Settle the call, unless it is settled already."""
        if not self.is_done:
            is_known = error is None or isinstance(error, RemoteRefusal | Unanswered)
            self._learn(frozenset(answer.split(b"\n")) if is_known else None)
        super().finish(answer, error)


class ReceiptCall(Call):
    """A publication with a receipt: ``recipients`` counts those whom the bus handed it, or has it wait for; None: it does not say."""

    __slots__ = ("recipients", "token")

    def __init__(self, token: bytes) -> None:
        super().__init__("a message with a receipt", Expects.ANSWER, controls.RECEIPT)
        self.token = token
        self.recipients: int | None = 0

    def take(self, key: bytes, payload: bytes) -> bool:
        """Take the receipt."""
        if key != controls.RECEIPT:
            return False
        count = receipt_count(self.token, payload)
        if count is None and not is_withheld(self.token, payload):
            return False
        self.recipients = count
        self.finish(payload)
        return True


class RequestCall(Call):
    """A request to a service, on its way: who the bus says was there just before it, and whether nobody was.

    ``members`` is the first page of the answer to ``!/bus/members``, None if it was not asked.
    """

    __slots__ = ("is_undeliverable", "members", "token")

    def __init__(self, request: str, token: bytes) -> None:
        super().__init__(request, Expects.SILENCE)
        self.token = token
        self.members: bytes | None = None
        self.is_undeliverable = False

    def take(self, key: bytes, payload: bytes) -> bool:
        """Take the members, or the word that nobody was there."""
        if key == controls.MEMBERS and self.members is None:
            self.members = payload
            return True
        if key != controls.RECEIPT:
            return False
        if receipt_count(self.token, payload) == 0:
            self.is_undeliverable = True
            return True
        return is_withheld(self.token, payload)


class PresenceCall(Call):
    """``!/bus/members`` of one connection's own key; *gone* is called if nobody is there."""

    __slots__ = ("_gone",)

    def __init__(self, gone: Callable[[], None]) -> None:
        super().__init__(f"CMSG {repr(controls.MEMBERS)[1:]}", Expects.ANSWER, controls.MEMBERS)
        self._gone = gone

    def finish(self, answer: bytes = b"", error: SbusError | None = None) -> None:
        """Settle the call, unless it is settled already."""
        if error is None and not self.is_done and not parse_members(answer)[0]:
            self._gone()
        super().finish(answer, error)


def receipt_count(token: bytes, payload: bytes) -> int | None:
    """Return how many recipients the receipt *payload* counts, or None if it is not the one with *token*."""
    head, _, digits = payload.rpartition(b"\0")
    return int(digits) if head == token and digits.isdigit() and len(digits) <= _MOST_DIGITS else None


def is_withheld(token: bytes, payload: bytes) -> bool:
    """Return whether *payload* is the receipt with *token*, and says that the number of recipients is not for this client."""
    return payload == b"%b\0%b" % (token, _WITHHELD)


def parse_members(payload: bytes) -> tuple[tuple[Peer, ...], int | None]:
    """Return a page of ``!/bus/members``: those on it, and the number to go on after, None at the end.

    Raises:
        ProtocolError: EPROTO if that is not what a bus answers.
    """
    try:
        page = json.loads(payload)
        peers = tuple(make_peer(_number(each["id"]), each["cred"].encode("ascii")) for each in page["members"])
        following = page["next"]
        return peers, None if following is None else _number(following)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(ErrorCode.EPROTO, f"invalid response to {controls.MEMBERS.decode()}: {payload[:64]!r}") from error


def members_question(key: bytes, after: int | None = None) -> bytes:
    """Return what ``!/bus/members`` is asked with, to go on after the number *after*."""
    return key if after is None else b"%b\0%d" % (key, after)


def _number(value: object) -> int:
    """Return the number of a connection. Raises ValueError if it is none."""
    if type(value) is not int or value < 0:
        raise ValueError(f"invalid number of a connection: {value!r}")
    return value
