"""``sbusctl explain``: shows whether a user may publish or subscribe, and the rule that decides."""

from __future__ import annotations

import enum
import os
from typing import Annotated

import typer

from sbusd.config import find_uid
from sbusd.ctl.output import JsonStyle, visible, write_json, write_lines
from sbusd.ctl.responses import BadResponseError, JsonObject, ask, text
from sbusd.ctl.settings import settings_of
from sbusd.protocol import controls


class Action(enum.StrEnum):
    """An action that rules allow or deny."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


_WORDS = {Action.PUBLISH: "publish to", Action.SUBSCRIBE: "subscribe to"}


def command(
    context: typer.Context,
    user: Annotated[str, typer.Argument(metavar="USER", help="User name or uid.")],
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="Either publish or subscribe.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key, or for subscribe a pattern.")],
) -> None:
    """Show whether a user may publish or subscribe, and why.

    No message is published, and no subscription is made.
    """
    settings = settings_of(context)
    question = b"%d\0%b\0%b" % (find_uid(user), action.encode(), os.fsencode(key))
    with settings.connect() as bus:
        answer = ask(bus, controls.EXPLAIN, question)
    if settings.json is JsonStyle.OFF:
        write_lines([line(answer, user, action), *blocking_lines(answer)])
    else:
        write_json(answer, settings.json)


def line(answer: JsonObject, user: str, action: Action) -> str:
    """Return *answer* as text. Raises BadResponseError if it has no decision."""
    allowed = answer.get("allowed")
    if not isinstance(allowed, bool):
        raise BadResponseError(controls.EXPLAIN, 'the member "allowed" is missing')
    may = "may" if allowed else "may not"
    key = visible(text(answer, "key") or "") or "''"
    code, reason = text(answer, "error"), text(answer, "reason")
    because = ": ".join(visible(part) for part in (code, reason) if part)
    verdict = f"{visible(user)} {may} {_WORDS[action]} {key}"
    return f"{verdict}: {because}" if because else verdict


def blocking_lines(answer: JsonObject) -> list[str]:
    """Return whether the publisher can wait for others, or the subscriber can block others.

    There is no line if the action is denied, or the bus does not report it.
    """
    if answer.get("allowed") is not True:
        return []
    if isinstance(waits := answer.get("waits_for_others"), bool):
        whose = "recipients of any user" if waits else "recipients of the same user only, because the key is private"
        return [f"Messages published with --wait wait for {whose}."]
    if isinstance(blocks := answer.get("blocks_others"), bool):
        return [f"Subscribers with blocking/hard/block can block publishers of {'any user' if blocks else 'the same user only'}."]
    return []
