"""The command line of sbusctl(1), from the arguments to the exit status."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from typing import NoReturn

import typer

from sbus.protocol.errors import SbusError
from sbus_programs.helptext import UsageError, show_usage_error
from sbus_programs.standard_output import discard_rest
from sbusctl.command_line import Call, read_call
from sbusctl.errors import INTERRUPTED, error_text, exit_on_error, exit_on_signals, print_error
from sbusctl.group import CONTEXT, CommandGroup
from sbusctl.output import write_lines
from sbusctl.settings import common_options, with_json_flag

_PROGRAM = "sbusctl"

_COMPLETE = "__complete"
"""The first argument if a shell completes a command line. It is for the scripts of ``sbusctl completion`` only."""


def application() -> typer.Typer:
    """Return sbusctl as a typer application."""
    app = typer.Typer(
        cls=CommandGroup,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings=CONTEXT,
    )
    app.callback()(common_options)
    return app


def run() -> None:
    """Run sbusctl with the arguments of the process, and exit.

    Exit status: 0; 1 after an error; 2 after an invalid option or argument; 130 after Ctrl-C; 143 after SIGTERM; 129 after SIGHUP; others
    as in :func:`status_of`.
    """
    _fill_standard_descriptors()
    if sys.argv[1:2] == [_COMPLETE]:
        _complete()
    with exit_on_signals():
        _run_command(with_json_flag(sys.argv[1:]))


def _run_command(arguments: list[str]) -> None:
    """Run sbusctl with *arguments*, and exit as :func:`run` does."""
    warnings.showwarning = lambda message, *_place, **_file: print_error(f"warning: {message}")
    try:
        call = read_call(arguments)
        if call is None:
            application()(arguments, prog_name=_PROGRAM)
        else:
            _run_call(call)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (SbusError, OSError) as error:
        # From outside the commands.
        print_error(error_text(error))
        sys.exit(1)
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        print_error(f"internal error, please report it (python3 -X dev prints a traceback): {type(error).__name__}: {error}")
        sys.exit(1)
    finally:
        _discard_output()


def _complete() -> NoReturn:
    """Print the reply to a shell, and exit. After an error nothing is printed, because the user is typing a command line."""
    from sbusctl.completion.reply import complete  # noqa: PLC0415 - commands do not need it

    status = 1
    with contextlib.suppress(Exception):
        write_lines(complete(sys.argv[2:]))
        status = 0
    _discard_output()
    sys.exit(status)


def _run_call(call: Call) -> None:
    """Run a command that typer has not parsed, and exit as typer does."""
    try:
        with exit_on_error():
            call.run()
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
    except UsageError as error:
        # The message shows the usage of the command, for which typer is needed.
        place = typer.Context(typer.main.get_command(application()), info_name=_PROGRAM, help_option_names=CONTEXT["help_option_names"])
        for name in call.name.split():
            command = place.command.get_command(place, name)  # type: ignore[attr-defined]  # it is a group
            place = typer.Context(command, info_name=name, parent=place)
        error.ctx = place
        show_usage_error(error)
        sys.exit(error.exit_code)


def _fill_standard_descriptors() -> None:
    """Open /dev/null for closed standard descriptors: otherwise the socket of the bus could become standard output.

    Input cannot be read from it and output cannot be written, so what would be lost is an error. Only messages can be lost, with standard
    error.
    """
    for fd, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdin = sys.stdin or os.fdopen(0, "r", encoding="utf-8")
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")


def _discard_output() -> None:
    """Redirect standard output if its reader has gone, so that the interpreter's final flush is silent."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_rest()
