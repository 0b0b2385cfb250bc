"""The recipients of a message, and the rights of a user: ``sbusctl members``, ``trace`` and ``explain``."""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable
from typing import Annotated

import typer

from sbus import Peer, RemoteRefusal, Unsupported
from sbus.bus_documents import BadResponseError, JsonObject
from sbus.protocol import controls
from sbus_programs.systemd.processes import Process, command_name, process_of
from sbusctl.commands.call import peer_json
from sbusctl.errors import DENIED
from sbusctl.formatting import NOTHING, Column, human_count, human_plural, table_lines
from sbusctl.keys import one_key
from sbusctl.output import JsonStyle, terminal_width, visible, write_json, write_lines, write_page
from sbusctl.processes import group_name, login_groups, user_id, user_name
from sbusctl.responses import TraceEntry, ask, text, trace, trace_entry
from sbusctl.settings import settings_of

_MEMBER_COLUMNS = (Column("ID", is_number=True), Column("PID", is_number=True), Column("USER"), Column("COMMAND"), Column("UNIT"))

_TRACE_COLUMNS = (
    Column("ID", is_number=True),
    Column("PID", is_number=True, rank=4),
    Column("USER"),
    Column("COMMAND"),
    Column("RECEIVES"),
    Column("WHEN-FULL", rank=2),
    Column("BLOCKS", rank=3),
    Column("REASON", least=38),
)


def members_command(context: typer.Context, *, key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the message.")]) -> None:
    """List the subscribers that would receive a message with a key."""
    settings = settings_of(context)
    name = one_key(key)
    with settings.connect() as bus:
        peers = bus.members(name)
    found = [(peer, process_of(peer.pid, time.time())) for peer in peers]
    if settings.json is not JsonStyle.OFF:
        write_json({"members": [member_json(peer, process) for peer, process in found]}, settings.json)
        return
    width = terminal_width()
    write_page(member_lines(found, legend=settings.legend, width=width), pager=settings.pager)


def member_lines(found: list[tuple[Peer, Process]], *, legend: bool, width: int | None) -> list[str]:
    """Return the table of *found*, with a legend also their number."""
    rows = [
        [human_count(peer.connection), human_count(peer.pid), user_name(peer.uid), process.command, process.unit] for peer, process in found
    ]
    table = table_lines(_MEMBER_COLUMNS, rows, legend=legend, width=width)
    return [*table, "", f"{human_plural(len(found), 'member')} listed."] if legend else table


def member_json(peer: Peer, process: Process) -> dict[str, object]:
    """Return one member: credentials verified by the bus, command and unit as seen by the kernel."""
    return {**peer_json(peer), "command": process.command, "unit": process.unit}


def trace_command(context: typer.Context, key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the message.")]) -> None:
    """Show for each connection whether it would receive a message, and why.

    No message is published.
    """
    settings = settings_of(context)
    name = one_key(key)
    with settings.connect() as bus:
        pages = trace(bus, name)
    if settings.json is not JsonStyle.OFF:
        write_json(pages.as_json(), settings.json)
        return
    found = [trace_entry(item, gets_it=True) for item in pages.items["recipients"]]
    found += [trace_entry(item, gets_it=False) for item in pages.items["others"]]
    width = terminal_width()
    write_page(trace_lines(pages.head, found, pages.hidden, legend=settings.legend, width=width), pager=settings.pager)


def trace_lines(head: JsonObject, found: list[TraceEntry], hidden: int, *, legend: bool, width: int | None) -> list[str]:
    """Return the decision on the key, the table of *found*, and with a legend the numbers."""
    table = table_lines(_TRACE_COLUMNS, [_trace_row(each) for each in found], legend=legend, width=width)
    verdict = [_verdict(head)]
    if not legend:
        return verdict + table
    recipients = sum(each.gets_it for each in found)
    sums = (
        f"{human_plural(recipients, 'connection')} would receive it, {len(found) - recipients} would not, {hidden} of other users hidden."
    )
    return [*verdict, "", *table, "", sums]


def _verdict(head: JsonObject) -> str:
    """Return whether the key may be published to, and the reason."""
    key = visible(text(head, "key") or "")
    words = "not known whether it may be published"
    if isinstance(publishable := head.get("publishable"), bool):
        words = "may be published" if publishable else "may not be published"
    reason = visible(text(head, "reason") or "")
    return f"{key}: {words}: {reason}" if reason else f"{key}: {words}"


def _trace_row(each: TraceEntry) -> list[str]:
    """Return the cells of one connection."""
    # The bus does not list the patterns of a connection that has very many.
    because = " ".join(pattern or "''" for pattern in each.patterns) or each.reason or NOTHING
    return [
        human_count(each.id),
        human_count(each.pid),
        user_name(each.uid),
        command_name(each.pid),
        "yes" if each.gets_it else "no",
        visible(each.when_full or NOTHING),
        each.blocks or NOTHING,
        because,
    ]


class Action(enum.StrEnum):
    """An action that rules allow or deny."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


_RIGHTS = {
    "may_vouch": "The user has the vouch right: it can publish in the name of others.",
    "may_deliver": "The user has the deliver right: it can publish to one connection alone.",
}
"""The rights of a publisher, by their members in the answer."""

_WORDS = {Action.PUBLISH: "publish to", Action.SUBSCRIBE: "subscribe to"}


def explain_command(
    context: typer.Context,
    user: Annotated[str, typer.Argument(metavar="USER", help="User name or uid.")],
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="Either publish or subscribe.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key, or for subscribe a pattern.")],
    unit: Annotated[str | None, typer.Option("--unit", metavar="UNIT", help="Ask about processes in this systemd unit.")] = None,
) -> None:
    """Show whether a user may publish or subscribe, and why.

    No message is published, and no subscription is made. The groups of the user are those of its latest connection. If the user database
    has others, more lines say what a new login would change. The exit status is 7 if the user may not.
    """
    settings = settings_of(context)
    uid = user_id(user)
    if uid is None:
        raise typer.BadParameter(f"unknown user {user!r}", param_hint="USER")
    question = b"%d\0%b\0%b" % (uid, action.encode(), os.fsencode(key))
    if unit is not None:
        from sbus_programs.config.rules import is_unit  # noqa: PLC0415 - the other commands here do not need it

        if unit and not is_unit(unit):
            raise typer.BadParameter(f"{unit!r} is not the name of a unit, such as nginx.service", param_hint="--unit")
        question += b"\0%b" % unit.encode()
    with settings.connect() as bus:
        if unit is not None and "units" not in bus.control(controls.FEATURES).decode("ascii", "replace").split("\n"):
            raise Unsupported("rules about units", "omit --unit")
        answer = ask(bus, controls.EXPLAIN, question)
        if (at_login := login_groups(uid)) is not None:
            answer = with_login(answer, at_login, lambda: ask(bus, controls.EXPLAIN, _named(at_login, question)))
    if settings.json is JsonStyle.OFF:
        write_lines([explain_line(answer, user, action), *blocking_lines(answer), *login_lines(answer, user, action)])
    else:
        write_json(answer, settings.json)
    if answer.get("allowed") is False:
        raise typer.Exit(DENIED)


def _named(groups: tuple[int, ...], question: bytes) -> bytes:
    """Return *question* about a user with these *groups*."""
    uid, nul, rest = question.partition(b"\0")
    return uid + b":" + b",".join(b"%d" % gid for gid in groups) + nul + rest


def with_login(answer: JsonObject, at_login: tuple[int, ...], asked_again: Callable[[], JsonObject]) -> JsonObject:
    """Return *answer*, or if it is about other groups than *at_login*, those of a new login, that with what these would change.

    If the bus knows no groups of the user, *answer* is replaced by that of *asked_again*, about the groups of a new login.
    """
    known = answer.get("groups")
    if not isinstance(known, list) or set(known) == set(at_login):
        return answer
    try:
        login = asked_again()
    except RemoteRefusal:  # only owners may name groups
        login = {}
    if answer.get("groups_from") is None and login:
        return login
    decision = {name: login[name] for name in ("allowed", "error", "reason") if name in login}
    return {**answer, "login": {"groups": sorted(at_login), **decision}}


def login_lines(answer: JsonObject, user: str, action: Action) -> list[str]:
    """Return what a new login of the user would change; no line if nothing."""
    login, known = answer.get("login"), answer.get("groups")
    if not isinstance(login, dict) or not isinstance(known, list) or not isinstance(login.get("groups"), list):
        return []
    differences = []
    for words, groups in (("lacks", set(login["groups"]) - set(known)), ("still has", set(known) - set(login["groups"]))):
        if groups:
            differences.append(f"{words} {', '.join(visible(group_name(gid)) for gid in sorted(groups))}")
    whose = "The connection of this command" if answer.get("uid") == os.geteuid() else f"The latest connection of {visible(user)}"
    lines = [f"{whose} {' and '.join(differences)}, unlike the user database: a process keeps the groups of its login."]
    if isinstance(login.get("allowed"), bool):
        lines.append("After a new login: " + explain_line({"key": answer.get("key"), **login}, user, action))
    return lines


def explain_line(answer: JsonObject, user: str, action: Action) -> str:
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
    """Return whether the publisher can wait for others, its rights, or whether the subscriber can block others.

    There is no line if the action is denied, or the bus does not report it.
    """
    if answer.get("allowed") is not True:
        return []
    if isinstance(waits := answer.get("waits_for_others"), bool):
        whose = "recipients of any user" if waits else "recipients of the same user only, because the key is private"
        lines = [f"Messages published with --wait wait for {whose}."]
        return lines + [words for right, words in _RIGHTS.items() if answer.get(right) is True]
    if isinstance(blocks := answer.get("blocks_others"), bool):
        return [f"Subscribers with blocking/hard/block can block publishers of {'any user' if blocks else 'the same user only'}."]
    return []
