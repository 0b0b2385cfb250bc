"""The envelope as a pydantic model, for programs outside the daemon: the same rules as the plain parser's. Spec: sbus-rpc(7) §2.

Slow to import, for pydantic is: import it when a call is made.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from sbusd.protocol.envelope import (
    MAX_DESTINATIONS,
    NUMBER_LIMITS,
    VERSION,
    Envelope,
    command_problem,
    decode_data,
    load_object,
    text_problem,
)
from sbusd.protocol.errors import ErrorCode, ProtocolError

_Twin = Annotated[int, Field(ge=0, le=NUMBER_LIMITS["src"])]


class EnvelopeModel(BaseModel):
    """The members under their names of the wire; ``try`` is ``try_``, for it is a word of Python."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    ver: Annotated[int, Field(ge=VERSION, le=VERSION)]
    uid: Annotated[str, Field(min_length=1)]
    cmd: Annotated[str, Field(min_length=1)]
    exp: Annotated[int, Field(ge=0, le=NUMBER_LIMITS["exp"])] = 0
    try_: Annotated[int, Field(ge=0, le=NUMBER_LIMITS["try"], alias="try")] = 0
    dat: Annotated[bytes, BeforeValidator(decode_data)] = b""
    src: _Twin = 0
    dst: Annotated[list[_Twin], Field(max_length=MAX_DESTINATIONS)] = []
    ret: str = ""
    shm: str = ""
    now: Annotated[int, Field(ge=0, le=NUMBER_LIMITS["now"])] = 0
    err: str = ""

    @field_validator("uid", "cmd", "ret", "shm", "err")
    @classmethod
    def _check_text(cls, text: str, info: ValidationInfo) -> str:
        """Refuse a text that is too long, or of the wrong characters."""
        name = info.field_name or ""
        problem = text_problem(name, text) or (command_problem(text) if name == "cmd" else "")
        if problem:
            raise ValueError(problem)
        return text

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Return the model of *payload*.

        Raises:
            ProtocolError: EINVAL, and which member is wrong.
        """
        try:
            return cls.model_validate(load_object(payload))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            name = str(first["loc"][0]) if first["loc"] else "whole"
            words = first["msg"].removeprefix("Value error, ")
            raise ProtocolError(ErrorCode.EINVAL, f"invalid envelope: {name}: {words}") from None

    def envelope(self) -> Envelope:
        """Return the plain envelope with the same content."""
        return Envelope(
            command=self.cmd,
            uid=self.uid,
            data=self.dat,
            reply_to=self.ret,
            expires_seconds=self.exp,
            sent_at=self.now,
            error=self.err,
            source=self.src,
            destinations=tuple(self.dst),
            tries=self.try_,
            schema=self.shm,
        )


def read_envelope(payload: bytes) -> Envelope:
    """Return the envelope that *payload* is. Raises ProtocolError (EINVAL) if it is none."""
    return EnvelopeModel.parse(payload).envelope()
