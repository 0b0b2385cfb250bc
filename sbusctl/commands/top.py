"""``sbusctl top``: shows rates, queues and losses, live."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from types import TracebackType
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from sbusctl.commands.link import link_state
from sbusctl.output import JsonStyle, is_terminal, write_json, write_lines
from sbusctl.processes import NameCache
from sbusctl.responses import text
from sbusctl.settings import TIMEOUT_SECONDS, Settings, settings_of
from sbusctl.top.display import CONNECTION_FIELDS, USER_FIELDS, Field, Report, TopReport, plain_lines, terminal_lines
from sbusctl.top.link import LINK_FIELDS, LinkWatch
from sbusctl.top.samples import Sample, Sampler, connection_rows, ordered, totals, user_rows

_QUIT = frozenset(b"qQ\x04")
"""q, Q and Ctrl-D."""


class Keyboard:
    """Keys pressed on the terminal *fd*; none if it is not a terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: list[int | list[bytes | int]] | None = None

    def __enter__(self) -> Self:
        """Switch to single keys without echo; Ctrl-C remains a signal."""
        if os.isatty(self._fd):
            # Ignore a terminal that has just closed.
            with contextlib.suppress(termios.error):
                before = termios.tcgetattr(self._fd)
                tty.setcbreak(self._fd, termios.TCSANOW)
                self._before = before
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the terminal, unless it has closed."""
        if self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def quit_within(self, seconds: float) -> bool:
        """Wait *seconds*, until a quit key, or until the terminal closes; return whether to quit."""
        if self._before is None:
            time.sleep(seconds)
            return False
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self._fd], [], [], rest)
            if ready and self._asks_for_end():
                return True
        return False

    def _asks_for_end(self) -> bool:
        """Return whether a quit key was pressed, or the terminal has closed."""
        try:
            pressed = os.read(self._fd, 64)
        except OSError:
            return True
        return not pressed or not _QUIT.isdisjoint(pressed)


class Screen:
    """The alternate screen of the terminal."""

    def __init__(self) -> None:
        # No markup or highlighting, because clients choose the text.
        self._console = Console(markup=False, highlight=False, emoji=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return self._console.size.width, self._console.size.height

    def show(self, lines: list[str]) -> None:
        """Show *lines*, replacing the previous ones in one write, so that nothing flickers."""
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)

    def __enter__(self) -> Self:
        """Switch to the alternate screen."""
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Switch back."""
        self._live.stop()


def can_show_screen() -> bool:
    """Return whether standard output is a terminal with an alternate screen."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


SORT, LINK_SORT = "queued-bytes", "in"
"""The columns by which the tables are sorted."""


def _complete_sort(incomplete: str) -> list[str]:
    """Return the names of columns that begin with *incomplete*."""
    names = dict.fromkeys(field.name for field in (*CONNECTION_FIELDS, *USER_FIELDS, *LINK_FIELDS))
    return [name for name in names if name.startswith(incomplete)]


def top_command(
    context: typer.Context,
    *,
    by_uid: Annotated[bool, typer.Option("--by-uid", help="Print one line per user instead of one per connection.")] = False,
    link: Annotated[bool, typer.Option("--link", help="Print one line per host of the link to other hosts.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print one report and exit, without the live display.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="COUNT", help="Exit after this many reports.")] = None,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, max=86_400, metavar="SECONDS", help="Time between reports.")
    ] = 2.0,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="COLUMN", autocompletion=_complete_sort, help="Sort by this column, largest first.")
    ] = None,
) -> None:
    """Show rates, queues and losses by connection or user.

    With --link, show the traffic with other hosts.
    Owners, and users who have the presence or tap right, see all connections; other users see their own.
    On a terminal the display is live; press q to quit.
    """
    settings = settings_of(context)
    if by_uid and link:
        raise typer.BadParameter("--by-uid and --link are mutually exclusive")
    field = _field(LINK_FIELDS if link else USER_FIELDS if by_uid else CONNECTION_FIELDS, sort or (LINK_SORT if link else SORT))
    if once and count is not None:
        raise typer.BadParameter("--once prints one report; omit it or --count")
    with settings.connect() as bus:
        if link:
            watch: Watch | LinkWatch = LinkWatch(
                lambda: link_state(bus, settings.bus_address(), TIMEOUT_SECONDS), sort=field.name, source=field.source
            )
        else:
            watch = Watch(Sampler(bus, with_users=by_uid), by_user=by_uid, sort=field.name, source=field.source)
        if settings.json is JsonStyle.OFF and not once and can_show_screen():
            _live(watch, settings, interval, count)
        else:
            _printed(watch, settings, interval, 1 if once else count)


def _field(fields: tuple[Field, ...], name: str) -> Field:
    """Return the column *name*. Raises BadParameter if this table does not have it."""
    for each in fields:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in fields)
    raise typer.BadParameter(f"no column {name!r} in this table: use {names}", param_hint="--sort")


def _live(watch: Watch | LinkWatch, settings: Settings, interval: float, count: int | None) -> None:
    """Show *count* reports on the alternate screen, until a key ends it; print the last one after that."""
    with Screen() as screen, Keyboard(sys.stdin.fileno()) as keys:
        report = watch.report()
        for number in itertools.count(1):
            width, height = screen.size
            screen.show(terminal_lines(report, legend=settings.legend, width=width, height=height))
            # The first report has no rates, so it is not counted.
            if number - 1 == count or keys.quit_within(interval):
                break
            report = watch.report()
        # One line less than the terminal has, for the prompt of the shell.
        width, height = screen.size
    write_lines(terminal_lines(report, legend=settings.legend, width=width, height=height - 1))


def _printed(watch: Watch | LinkWatch, settings: Settings, interval: float, count: int | None) -> None:
    """Print reports one after the other, as JSON objects if requested."""
    for number, report in enumerate(_reports(watch, interval, count)):
        if settings.json is not JsonStyle.OFF:
            write_json(report.as_json(), settings.json)
            continue
        blank = [""] if number else []
        if is_terminal():
            lines = terminal_lines(report, legend=settings.legend, width=shutil.get_terminal_size().columns)
        else:
            lines = plain_lines(report, legend=settings.legend)
        write_lines(blank + lines)


def _reports(watch: Watch | LinkWatch, interval: float, count: int | None) -> Iterator[Report]:
    """Yield *count* reports, one per interval; without *count* there is no end."""
    watch.report()
    for _ in itertools.count() if count is None else range(count):
        time.sleep(interval)
        yield watch.report()


class Watch:
    """Reports sorted by the column *sort*, whose rows have its value under *source*."""

    def __init__(self, sampler: Sampler, *, by_user: bool, sort: str, source: str) -> None:
        self._sampler = sampler
        self._by_user = by_user
        self._sort = sort
        self._source = source
        self._names = NameCache()
        self._earlier: Sample | None = None

    def report(self) -> TopReport:
        """Take a sample, and return the changes since the last one; the first report has no rates.

        Raises:
            SbusError: the bus refused a request, or is gone.
        """
        earlier, later = self._earlier, self._sampler.sample()
        self._earlier = later
        rows = connection_rows(earlier, later, self._names)
        self._names.keep(later.connections)
        sums = totals(earlier, later, rows)
        if self._by_user:
            rows = user_rows(rows, later.users, self._names)
        return TopReport(
            clock=later.clock,
            seconds=None if earlier is None else later.moment - earlier.moment,
            scope="bus" if text(later.stats, "scope") == "bus" else "connections",
            totals=sums,
            rows=ordered(rows, self._source),
            by_user=self._by_user,
            sorted_by=self._sort,
            unseen=later.unseen,
        )
