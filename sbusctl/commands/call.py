"""``sbusctl call``: calls a service, and prints its response."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from sbus import CALL_SECONDS, CALL_TRIES, Answer, NoRecipient, Outcome, Peer, SbusError
from sbus.protocol.envelope import MAX_TWIN, NUMBER_LIMITS
from sbusctl.errors import error_text, print_error, status_of
from sbusctl.output import JsonStyle, encode, flush, is_terminal, json_text, text_or_base64, visible, write_bytes
from sbusctl.payloads import one_payload
from sbusctl.processes import user_name
from sbusctl.settings import MAX_SECONDS, TIMEOUT_SECONDS, settings_of


def call_command(
    context: typer.Context,
    *,
    name: Annotated[str, typer.Argument(metavar="COMMAND", help="Command to call.")],
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Request data, by default empty. Use '-' to read standard input.")
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="Call every service separately, and print each response.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, max=MAX_SECONDS, metavar="SECONDS", help="Maximum time to wait for the response.")
    ] = CALL_SECONDS,
    twin: Annotated[
        int | None,
        typer.Option("--twin", min=1, max=MAX_TWIN, metavar="ID", help="Call the command on the remote host with this number."),
    ] = None,
    tries: Annotated[
        int | None,
        typer.Option(
            "--retries",
            min=0,
            max=NUMBER_LIMITS["try"],
            metavar="COUNT",
            help=f"With --twin: how many times to try again if that host cannot be reached. Default: {CALL_TRIES}.",
        ),
    ] = None,
) -> None:
    """Call a service, and print its response."""
    if everyone and twin is not None:
        raise typer.BadParameter("--all calls services of this host only; omit --twin")
    if tries is not None and twin is None:
        raise typer.BadParameter("--retries requires --twin: calls on this host are not tried again")
    settings = settings_of(context)
    payload = one_payload(data, sys.stdin.buffer, "DATA")
    try:
        with settings.connect(max(TIMEOUT_SECONDS, timeout)) as bus:
            if not everyone:
                _print_answer(
                    bus.call(name, payload, timeout=timeout, twin=twin, tries=CALL_TRIES if tries is None else tries), settings.json
                )
                return
            status = print_outcomes(bus.call_all(name, payload, timeout=timeout), name, settings.json)
    except ValueError as error:
        if isinstance(error, SbusError):
            raise
        raise typer.BadParameter(str(error), param_hint="COMMAND") from None
    if status:
        raise typer.Exit(status)


def print_outcomes(outcomes: Iterable[Outcome], name: str, style: JsonStyle) -> int:
    """Print each of *outcomes* as it arrives; return the status of the first failure, or 0.

    Raises:
        NoRecipient: there is no service.
    """
    status, count = 0, 0
    for outcome in outcomes:
        count += 1
        if style is not JsonStyle.OFF:
            write_bytes(json_text(outcome_json(outcome), style).encode("ascii") + b"\n")
        elif outcome.answer is not None:
            write_bytes(encode(f"{outcome.member.connection}\t{user_name(outcome.member.uid)}\t{visible(bytes(outcome.answer))}\n"))
        flush()
        if outcome.error is not None:
            status = status or status_of(outcome.error)
            if style is JsonStyle.OFF:
                print_error(f"connection {outcome.member.connection} of {user_name(outcome.member.uid)}: {error_text(outcome.error)}")
    if not count:
        raise NoRecipient(name)
    return status


def outcome_json(outcome: Outcome) -> dict[str, object]:
    """Return the outcome of one service: ``callee`` and ``data``, or ``error`` and its ``kind``."""
    if outcome.answer is not None:
        return answer_json(outcome.answer, outcome.member)
    error = outcome.error
    return {"type": "error", "callee": peer_json(outcome.member), "kind": type(error).__name__, "error": str(error)}


def answer_json(answer: Answer, callee: Peer | None) -> dict[str, object]:
    """Return a response: ``callee``, ``twin`` (0 is this host), and ``data``, or ``data_base64`` if it is not UTF-8."""
    return {
        "type": "answer",
        "callee": None if callee is None else peer_json(callee),
        "twin": answer.source,
        **text_or_base64("data", bytes(answer)),
    }


def peer_json(peer: Peer) -> dict[str, object]:
    """Return the credentials of a connection, as the kernel reported them to the bus."""
    return {"id": peer.connection, "uid": peer.uid, "gid": peer.gid, "pid": peer.pid}


def _print_answer(answer: Answer, style: JsonStyle) -> None:
    """Print one response: unchanged, or printable on a terminal."""
    if style is not JsonStyle.OFF:
        write_bytes(json_text(answer_json(answer, answer.callee), style).encode("ascii") + b"\n")
    elif is_terminal():
        write_bytes(encode(visible(bytes(answer)) + "\n"))
    else:
        write_bytes(bytes(answer))
    flush()
