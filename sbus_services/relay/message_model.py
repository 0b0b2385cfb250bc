"""The message format of relays, as a pydantic model. Spec: sbus-relay(8).

The limits equal those of the bus envelope, ``sbus.protocol.envelope``, because a message can travel both ways. Two things differ:
the relay assigns ``uid``, so a client may omit it, and ``dat`` stays base64 text, because the relay forwards it.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import re
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from sbus.protocol.envelope import (
    MAX_DESTINATIONS,
    MAX_TWIN,
    NUMBER_LIMITS,
    VERSION,
    command_problem,
    decode_data,
    read_context,
    text_problem,
)
from sbus.protocol.errors import ProtocolError, SbusError
from sbus.protocol.printable import printable

DEFAULT_EXPIRY_SECONDS = 3_600
"""The meaning of ``exp`` 0."""

RESERVED_COMMAND = "system"
"""``msgbus.system.…`` are the relay's own queues. A command with this name would write to them."""

Twin = Annotated[int, Field(ge=0, le=MAX_TWIN)]


class InvalidMessageError(SbusError, ValueError):
    """A malformed message, with the members that an error response needs, if they are valid: ``ret``, ``dst``, ``cmd``
    and ``ref``.
    """

    def __init__(self, words: str, ret: str = "", dst: tuple[int, ...] = (), cmd: str = "", ref: str = "") -> None:
        """*words* name the invalid member."""
        super().__init__(words)
        self.ret = ret
        self.dst = dst
        self.cmd = cmd
        self.ref = ref


class RelayMessage(BaseModel):
    """A request or a response. ``try_`` is the member ``try``, a Python keyword."""

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
    ctx: str = ""
    """The trace context of a request. An invalid one is ignored."""
    ref: str = ""
    """The client's own name of a request, which its response has too. A service gets the ``uid`` here, and may respond with it alone."""
    tag: str = ""
    """Words of the client for the service."""

    @field_validator("uid", "cmd", "ret", "shm", "err")
    @classmethod
    def _check_text(cls, text: str, info: ValidationInfo) -> str:
        """Reject a text that is too long or has invalid characters."""
        name = info.field_name or ""
        if problem := text_problem(name, text) or (command_problem(text) if name == "cmd" and text else ""):
            raise ValueError(problem)
        return text

    @field_validator("ref", "tag")
    @classmethod
    def _check_label(cls, text: str) -> str:
        """Reject a label that is too long."""
        if problem := label_problem(text):
            raise ValueError(problem)
        return text

    @field_validator("ctx", mode="before")
    @classmethod
    def _read_context(cls, value: object) -> str:
        """Return the trace context, or empty text if it is invalid."""
        return read_context(value)

    @field_validator("dat")
    @classmethod
    def _check_data(cls, text: str) -> str:
        """Reject data that is not base64."""
        try:
            decode_data(text)
        except (ProtocolError, binascii.Error):
            raise ValueError("not valid base64") from None
        return text

    @classmethod
    def parse(cls, payload: bytes, *, any_error: bool = False) -> Self:
        """Parse *payload*. With *any_error*, it is a response of an application of any implementation: ``err`` may be any JSON value, which
        is converted to text, hosts may be text, and ``ref`` identifies the request if there is no ``uid``.

        Raises:
            InvalidMessageError: *payload* is malformed; the error names the invalid member.
        """
        try:
            value = json.loads(payload.decode("utf-8"))
        except (ValueError, RecursionError):
            raise InvalidMessageError("the message is not valid JSON") from None
        if not isinstance(value, dict):
            raise InvalidMessageError("the message is JSON, but not an object")
        if isinstance(value.get("dst"), list):
            value["dst"] = tuple(value["dst"])
        if any_error:
            _normalize(value)
        optional = {name for name in _OPTIONAL if value.get(name, "") is None}
        try:
            return cls.model_validate({name: member for name, member in value.items() if name in _MEMBERS - optional})
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            words = first["msg"].removeprefix("Value error, ")
            raise _refusal(f"{first['loc'][0]}: {words}", value) from None

    def encode(self) -> bytes:
        """Return JSON in one line, with members in the order of the founding document; others follow, unless they are empty."""
        return self.model_dump_json(by_alias=True, exclude={name for name in _EXTRA if not getattr(self, name)}).encode()

    @property
    def is_misaddressed_error(self) -> bool:
        """Whether this is an error addressed to its own sender: the original's Node client reports errors so."""
        return bool(self.err) and not self.dat and self.dst == (self.src,)

    @property
    def expiry_seconds(self) -> int:
        """``exp``, or its default if it is 0."""
        return self.exp or DEFAULT_EXPIRY_SECONDS

    def with_(self, **changes: object) -> Self:
        """Return a copy with other values in some members."""
        return self.model_copy(update=changes)

    def failure(self, words: str, now: float) -> Self:
        """Return the error response to this request, which has one destination; ``src`` is that destination."""
        source = self.dst[0] if self.dst else 0
        return self.with_(src=source, dst=(self.src,), dat="", now=int(now), err=words[:MAX_ERROR_CHARACTERS], ctx="")

    def digest(self) -> str:
        """Return a digest that is equal for copies of this request, and differs for any other request with the same ``uid``."""
        return hashlib.blake2b(self.with_(try_=0, ref="", tag="").encode(), digest_size=8).hexdigest()


MAX_ERROR_CHARACTERS = 1_000
"""Longest ``err`` that a relay writes. In UTF-8 it never exceeds the limit of the envelope."""

MAX_LABEL_BYTES = 1_024
"""Longest ``ref`` or ``tag``."""

_EXTRA = ("ctx", "ref", "tag")
"""Members that are not in the founding document."""

_OPTIONAL = ("ref", "tag", "shm")
"""Members that other implementations send as null instead of leaving them out."""

UNKNOWN_ERROR = "the service reported an error without a message"
"""Replaces an empty ``err`` object, which Node makes of an Error."""

_NUMBER = re.compile(r"[0-9]{1,10}")

_MEMBERS = {field.alias or name for name, field in RelayMessage.model_fields.items()}


def is_reserved(command: str) -> bool:
    """Return whether the queue of *command* belongs to the relay itself."""
    return command == RESERVED_COMMAND or command.startswith(f"{RESERVED_COMMAND}.")


def label_problem(text: str) -> str:
    """Return why *text* is invalid as ``ref`` or ``tag``, or no words."""
    if any("\ud800" <= each <= "\udfff" for each in text):
        return "contains an unpaired surrogate"
    return f"is longer than {MAX_LABEL_BYTES} bytes" if len(text.encode()) > MAX_LABEL_BYTES else ""


def _normalize(response: dict[str, object]) -> None:
    """Give the response of an application the form of this model. rmb-peer writes hosts as text, and no ``uid`` and ``src``."""
    error = response.get("err", "")
    if not isinstance(error, str):
        words = error.get("message") if isinstance(error, dict) else None
        response["err"] = "" if error is None else words if isinstance(words, str) and words else _as_text(error)
    for name in ("dst", "src"):
        if isinstance(text := response.get(name), str) and _NUMBER.fullmatch(text):
            response[name] = (int(text),) if name == "dst" else int(text)


def _as_text(error: object) -> str:
    """Return an error that is not a text."""
    return json.dumps(error)[:MAX_ERROR_CHARACTERS] if error else UNKNOWN_ERROR


def _refusal(words: str, value: dict[str, object]) -> InvalidMessageError:
    """Return the error for the malformed message *value*, with those members that an error response needs and that are valid."""
    ret, dst, cmd, ref = value.get("ret"), value.get("dst"), value.get("cmd"), value.get("ref")
    return InvalidMessageError(
        printable(words),
        ret if isinstance(ret, str) and not text_problem("ret", ret) else "",
        tuple(dst) if isinstance(dst, tuple) and len(dst) <= MAX_DESTINATIONS and all(_is_twin(each) for each in dst) else (),
        cmd if isinstance(cmd, str) and not command_problem(cmd) else "",
        ref if isinstance(ref, str) and not label_problem(ref) else "",
    )


def _is_twin(value: object) -> bool:
    """Return whether *value* is a valid host number."""
    return type(value) is int and 0 <= value <= MAX_TWIN
