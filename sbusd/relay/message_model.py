"""The one form of everything that a relay takes and gives: the founding document's object, as a pydantic model. Spec: sbus-relay(8).

The limits are those of the bus's own envelope, ``sbusd.protocol.envelope``: the same message may travel either way. What differs:
``uid`` is given by the relay, so a client's request may leave it out, and ``dat`` stays the text that it is, to be handed on.
"""

from __future__ import annotations

import binascii
import hashlib
import json
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from sbusd.protocol.envelope import MAX_DESTINATIONS, NUMBER_LIMITS, VERSION, command_problem, decode_data, text_problem
from sbusd.protocol.errors import ProtocolError, SbusError
from sbusd.protocol.printable import printable

DEFAULT_EXPIRY_SECONDS = 3_600
"""What ``exp`` 0 means."""

RESERVED_COMMAND = "system"
"""``msgbus.system.…`` are the relay's own queues: a command of that name would reach into them."""

Twin = Annotated[int, Field(ge=0, le=NUMBER_LIMITS["src"])]


class InvalidMessageError(SbusError, ValueError):
    """A message that is none, with what could still be read of it to answer: ``ret`` and ``dst``."""

    def __init__(self, words: str, ret: str = "", dst: tuple[int, ...] = (), cmd: str = "") -> None:
        """*words* say which member is wrong."""
        super().__init__(words)
        self.ret = ret
        self.dst = dst
        self.cmd = cmd


class RelayMessage(BaseModel):
    """A request, or the answer to one. ``try`` is ``try_``, for it is a word of Python."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, populate_by_name=True)

    ver: Annotated[int, Field(ge=VERSION, le=VERSION)] = VERSION
    uid: str = ""
    cmd: str = ""
    exp: Annotated[int, Field(ge=0, le=NUMBER_LIMITS["exp"])] = 0
    try_: Annotated[int, Field(ge=0, le=NUMBER_LIMITS["try"], alias="try")] = 0
    dat: str = ""
    src: Twin = 0
    dst: Annotated[tuple[Twin, ...], Field(max_length=MAX_DESTINATIONS, strict=False)] = ()
    ret: str = ""
    shm: str = ""
    now: Annotated[int, Field(ge=0, le=NUMBER_LIMITS["now"])] = 0
    err: str = ""

    @field_validator("uid", "cmd", "ret", "shm", "err")
    @classmethod
    def _check_text(cls, text: str, info: ValidationInfo) -> str:
        """Refuse a text that is too long, or of the wrong characters."""
        name = info.field_name or ""
        if problem := text_problem(name, text) or (command_problem(text) if name == "cmd" and text else ""):
            raise ValueError(problem)
        return text

    @field_validator("dat")
    @classmethod
    def _check_data(cls, text: str) -> str:
        """Refuse what is not base64."""
        try:
            decode_data(text)
        except (ProtocolError, binascii.Error):
            raise ValueError("not valid base64") from None
        return text

    @classmethod
    def parse(cls, payload: bytes, *, any_error: bool = False) -> Self:
        """Return the message that *payload* is; with *any_error* its ``err`` may be any JSON, which becomes text.

        Raises:
            MessageError: it is none; says which member is wrong.
        """
        try:
            value = json.loads(payload.decode("utf-8"))
        except (ValueError, RecursionError):
            raise InvalidMessageError("the message is not valid JSON") from None
        if not isinstance(value, dict):
            raise InvalidMessageError("the message is JSON, but not an object")
        if isinstance(value.get("dst"), list):
            value["dst"] = tuple(value["dst"])
        if any_error and not isinstance(value.get("err", ""), str):
            value["err"] = json.dumps(value["err"])[:MAX_ERROR_CHARACTERS] if value["err"] else UNKNOWN_ERROR
        try:
            return cls.model_validate({name: member for name, member in value.items() if name in _MEMBERS})
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            words = first["msg"].removeprefix("Value error, ")
            raise _refusal(f"{first['loc'][0]}: {words}", value) from None

    def encode(self) -> bytes:
        """Return it as JSON in one line, in the order of the founding document."""
        return self.model_dump_json(by_alias=True).encode()

    @property
    def is_misaddressed_error(self) -> bool:
        """Whether it is an error that names its own sender as the one who asked: so the original's client for Node reports one."""
        return bool(self.err) and not self.dat and self.dst == (self.src,)

    @property
    def expiry_seconds(self) -> int:
        """``exp``, or what 0 means."""
        return self.exp or DEFAULT_EXPIRY_SECONDS

    def with_(self, **changes: object) -> Self:
        """Return it with other values in some members."""
        return self.model_copy(update=changes)

    def failure(self, words: str, now: float) -> Self:
        """Return the answer to this request for one destination that says why there is none; ``src`` names whom it was for."""
        return self.with_(src=self.dst[0] if self.dst else 0, dst=(self.src,), dat="", now=int(now), err=words[:MAX_ERROR_CHARACTERS])

    def digest(self) -> str:
        """Return what two copies of this request have in common, and with one ``uid`` no other request: all but the tries left."""
        return hashlib.blake2b(self.with_(try_=0).encode(), digest_size=8).hexdigest()


MAX_ERROR_CHARACTERS = 1_000
"""Longest ``err`` that a relay writes: in UTF-8 always within the envelope's limit."""

UNKNOWN_ERROR = "the service reported an error without a message"
"""Replaces an ``err`` that is an empty object: that is what Node makes of an Error."""

_MEMBERS = {field.alias or name for name, field in RelayMessage.model_fields.items()}


def is_reserved(command: str) -> bool:
    """Return whether the queue of *command* would be one of the relay's own."""
    return command == RESERVED_COMMAND or command.startswith(f"{RESERVED_COMMAND}.")


def _refusal(words: str, value: dict[str, object]) -> InvalidMessageError:
    """Return the error about *value*, with those members that an answer needs and that are right by themselves."""
    ret, dst, cmd = value.get("ret"), value.get("dst"), value.get("cmd")
    return InvalidMessageError(
        printable(words),
        ret if isinstance(ret, str) and not text_problem("ret", ret) else "",
        tuple(dst) if isinstance(dst, tuple) and len(dst) <= MAX_DESTINATIONS and all(_is_twin(each) for each in dst) else (),
        cmd if isinstance(cmd, str) and not command_problem(cmd) else "",
    )


def _is_twin(value: object) -> bool:
    """Return whether *value* is a twin's number."""
    return type(value) is int and 0 <= value <= NUMBER_LIMITS["src"]
