"""The program sbus-feed(8): one command for each feed."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Annotated, NoReturn

import typer
from systemd import daemon

from sbusd.client import Scope
from sbusd.feeds import keys
from sbusd.feeds.kernel import Kernel
from sbusd.feeds.netlink import NetlinkFeed
from sbusd.feeds.outlet import BusOutlet
from sbusd.protocol.errors import SbusError

app = typer.Typer(
    help="Put this machine's own events on the bus.",
    epilog="See sbus-feed(8).",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_RECEIVE_MIB_MOST = 1024


@app.callback()
def _feeds() -> None:
    """Keep the name of the feed on the command line, though there is only one so far."""


@app.command()
def netlink(
    address: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The bus at this address.")] = None,
    system: Annotated[bool, typer.Option("--system", help="The system's bus.")] = False,
    user: Annotated[bool, typer.Option("--user", help="The calling user's bus.")] = False,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="The network namespace of this name, ip-netns(8).")] = None,
    receive_buffer: Annotated[
        int, typer.Option(metavar="KIB", min=1, max=_RECEIVE_MIB_MOST << 10, help="Room for the kernel's messages, in KiB.")
    ] = 4096,
) -> None:
    """Links, addresses, routes and neighbours: all there are, then every change. Keys: net/…"""
    if (address is not None) + system + user > 1:
        raise typer.BadParameter("--address, --system and --user exclude each other")
    scope: Scope | None = "system" if system else "user" if user else None
    try:
        _feed_netlink(address, scope, namespace, receive_buffer << 10)
    except KeyboardInterrupt:
        _end_quietly()
    except SbusError as wrong:
        _fail(str(wrong))
    except OSError as wrong:
        _fail(f"netlink: {wrong.strerror or wrong}")


def main() -> None:
    """Run the program. SIGTERM ends it as SIGINT does: with status 0, wherever it waits."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    app(prog_name="sbus-feed")


def _feed_netlink(address: str | None, scope: Scope | None, namespace: str | None, receive_bytes: int) -> None:
    """Run the netlink feed until a signal ends it."""
    with contextlib.ExitStack() as open_things:
        kernel = open_things.enter_context(contextlib.closing(Kernel(namespace, receive_bytes)))
        outlet = open_things.enter_context(contextlib.closing(BusOutlet.connect(address, scope, keys.REQUEST, _say)))
        feed = open_things.enter_context(contextlib.closing(NetlinkFeed(kernel, outlet, _say, _ready, namespace=namespace)))
        feed.run()


def _ready(status: str) -> None:
    """Tell the service manager, if there is one, that the feed is at work."""
    try:
        daemon.notify(f"READY=1\nSTATUS={status}")
    except OSError as wrong:
        _say(f"cannot notify the service manager: {wrong}")


def _say(line: str) -> None:
    """Write one line to standard error: the journal, for a service."""
    # What cannot be said must not end the feed; the counters in net/snapshot/end say it too.
    with contextlib.suppress(OSError, ValueError):
        print(f"sbus-feed: {line}", file=sys.stderr, flush=True)


def _fail(line: str) -> NoReturn:
    """End with status 1 and one line."""
    _say(line)
    raise typer.Exit(1)


def _end_quietly() -> NoReturn:
    """End with status 0, and let no further signal in between."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise typer.Exit(0)
