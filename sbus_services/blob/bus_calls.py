"""Calls to other services: to the bus, which process has a connection, and to the local sbus-link, for blobs of other hosts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from sbus import AsyncBus, SbusError
from sbus.asyncio.look_ups import UNANSWERED
from sbus.asyncio.named_user import NamedUser
from sbus.errors import AnswerLost, CallTimeout, NoRecipient, PeerDisconnected, RemoteError, RemoteRefusal
from sbus.protocol import controls
from sbus.protocol.errors import ProtocolError
from sbus.protocol.framed_data import framed_data, parse_framed_data
from sbus.rpc.calls import Answer
from sbus_services.blob.requests import Cause, Refusal

ANSWER_SECONDS = 5.0
"""How long the bus may take for an answer."""

COMMAND = "link/blob"

CALL_SECONDS = 15.0
"""How long the link may take for an answer; it has a shorter limit for the other host."""

LINK_USER = "sbus-link"
"""The user of sbus-link.service."""


class _KeptBus:
    """A connection to the bus at *address* with this *name*, made when it is first needed, within *seconds*."""

    def __init__(self, address: str, seconds: float, name: str) -> None:
        self._address = address
        self._seconds = seconds
        self._name = name
        self._bus: AsyncBus | None = None
        self._connecting = asyncio.Lock()

    async def close(self) -> None:
        """Close the connection to the bus. Harmless without one."""
        bus, self._bus = self._bus, None
        if bus is not None:
            with contextlib.suppress(SbusError):
                await bus.close()

    async def _connected(self) -> AsyncBus:
        """Return the connection to the bus, a new one if there is none."""
        async with self._connecting:
            if self._bus is None:
                self._bus = await AsyncBus.connect(self._address, timeout=self._seconds, name=self._name)
            return self._bus


def _why(error: Exception) -> str:
    """Return *error* in words."""
    return "it did not answer in time" if isinstance(error, TimeoutError) and not isinstance(error, SbusError) else str(error)


class BusConnections(_KeptBus):
    """The connections of the bus at *address*; connected when the first question comes."""

    def __init__(self, address: str) -> None:
        super().__init__(address, ANSWER_SECONDS, "sbus-blob")

    async def has(self, number: int, uid: int, pid: int) -> bool:
        """Return whether the connection *number* belongs to the process *pid* of the user *uid*. Raises Refusal: NO_BUS."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                bus = await self._connected()
                answer = json.loads(await bus.control(controls.CONNECTIONS, b"%d" % max(0, number - 1)))
        except (SbusError, TimeoutError, ValueError) as error:
            await self.close()
            raise Refusal(Cause.NO_BUS, f"cannot ask the bus about connection {number}: {_why(error)}") from None
        listed = answer.get("connections") if isinstance(answer, dict) else None
        return any(
            isinstance(each, dict) and (each.get("id"), each.get("uid"), each.get("pid")) == (number, uid, pid)
            for each in (listed if isinstance(listed, list) else [])
        )


class AgainError(Exception):
    """The other host was not reached; it can be asked again."""


class NoLinkError(AgainError):
    """No link serves the bus now."""


class LinkCalls(_KeptBus):
    """The link on the bus at *address*; connected when the first call is made."""

    def __init__(self, address: str) -> None:
        super().__init__(address, CALL_SECONDS, "sbus-blob other hosts")
        self._link_user = NamedUser(LINK_USER)

    async def ask(self, host: str, ticket: str, ask: str, **members: object) -> tuple[dict[str, Any], list[bytes]]:
        """Return the answer of *host* to a question about the blob with *ticket*: its object and its frames.

        Raises:
            AgainError: the host, the link or the bus is not available now.
            Refusal: the host does not give the blob, or the rules of the link do not permit it.
        """
        data = framed_data({"ask": ask, "host": host, "ticket": ticket, **members})
        try:
            answer = await (await self._connected()).call(COMMAND, data, timeout=CALL_SECONDS)
        except RemoteError as error:
            raise _refusal(error.words) from None
        except NoRecipient:
            raise NoLinkError(f"no link serves {COMMAND} on this bus") from None
        except RemoteRefusal as error:
            raise Refusal(Cause.NO_LINK, f"the bus does not let sbus-blob call {COMMAND}: {error.said}") from None
        except SbusError as error:
            if not isinstance(error, CallTimeout | PeerDisconnected | AnswerLost):
                await self.close()
            raise AgainError(str(error)) from None
        await self._check_callee(answer)
        try:
            return parse_framed_data(bytes(answer))
        except ProtocolError as error:
            raise Refusal(Cause.NO_LINK, f"the answer of the link is malformed: {error.words}") from None

    async def _check_callee(self, answer: Answer) -> None:
        """Raise Refusal unless root, the user of this service or that of the link has answered: others could answer with blobs of
        their own. Raises AgainError if the user database does not respond."""
        uid = -1 if answer.callee is None else answer.callee.uid
        try:
            is_trusted = await self._link_user.is_trusted(uid)
        except UNANSWERED:
            raise AgainError(f"the user {LINK_USER} was not looked up in time") from None
        if not is_trusted:
            raise Refusal(Cause.NO_LINK, f"user {uid} serves {COMMAND}, and is not {LINK_USER}; see RIGHTS in sbus-link(8)")


def _refusal(words: str) -> Exception:
    """Return the exception for an error of the link, which is a code and words."""
    code, _, reason = words.partition(" ")
    if code == "EAGAIN" or not (code.startswith("E") and code.isalnum() and code.isupper()):
        return AgainError(reason if code == "EAGAIN" else words)
    return Refusal(Cause.NOT_THERE if code == "ENOENT" else Cause.NOT_PULLED, reason)
