"""Events of this machine on the bus: the network for all users, the journal only for users that the rules name."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from pathlib import Path

from sbus_services.feeds.journal.entry import Cursor, CursorFile
from sbus_services.feeds.journal.reader import JournalError, JournalReader
from tools.demo.activation import ActivatedBus
from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import PAUSE_SECONDS, TIMEOUT_SECONDS, Programs
from tools.demo.users import DemoUser

LINES = 100
"""Published journal entries: enough to see something in the report."""

RULES = """\
[[policy]]
keys = "journal/"
publish = "allow"
subscribe = "allow"
users = ["root"]

[[policy]]
keys = "journal/"
publish = "deny"
subscribe = "deny"
comment = "the journal is for root"
"""


class FeedsDemo:
    """Shows the feeds. *journal* is a folder of journal files, None for the machine's own."""

    def __init__(self, bus: ActivatedBus, programs: Programs, narrator: Narrator, folder: Path, journal: Path | None = None) -> None:
        self._bus = bus
        self._programs = programs
        self._narrator = narrator
        self._folder = folder
        self._journal = journal

    def show(self, other_user: DemoUser) -> None:
        """Publish network events, and the journal, which *other_user* cannot read."""
        self._narrator.step("The network and journal of this machine are published on the bus, and recorded")
        self._show_network()
        last = self._last_entry()
        if last is not None:
            self._show_journal(last, other_user)

    def _show_network(self) -> None:
        """Publish all links, addresses, routes and neighbours."""
        with self._programs.running(None, "sbusctl", "sub", "net/snapshot/end", "-n", "1", "--timeout", "60", "-F", "%k") as snapshot:
            self._bus.wait_for_subscriber("net/snapshot/end")
            with self._programs.running(None, "sbus-feed", "netlink") as feed:
                self._programs.wait_beside(snapshot, feed)
                self._programs.finish(snapshot)
                feed.terminate()
                self._programs.finish(feed)

    def _last_entry(self) -> Cursor | None:
        """Return the position of the last journal entry; None, with a remark, if there is none to read."""
        try:
            with contextlib.closing(JournalReader(self._journal)) as reader:
                last = reader.seek_last(0)
        except JournalError as wrong:
            self._narrator.remark(f"{wrong}; recording network events only")
            return None
        if last is None:
            self._narrator.remark("this machine has no journal, as in a container without systemd; recording network events only")
        return last

    def _show_journal(self, last: Cursor, other_user: DemoUser) -> None:
        """Publish the end of the journal up to *last*, protected by rules."""
        narrator = self._narrator
        narrator.remark(
            "access to the journal is restricted, so the bus first reads these rules, which usually are in /etc/sbus/sbusd.toml:"
        )
        narrator.answer(RULES)
        narrator.command("root", ["kill", "-HUP", "PID of the bus"])
        self._bus.reload_rules(RULES)
        said = self._programs.run(other_user, "sbusctl", "sub", "journal/", "-n", "1", status=1)
        if "EPERM" not in said:
            raise DemoError(f"the subscription should have been rejected with EPERM: {said!r}")
        place = self._folder / "cursor"
        words = ["sbus-feed", "journal", "--lines", str(LINES), "--cursor-file", str(place)]
        if self._journal is not None:
            words += ["--directory", str(self._journal)]
        with self._programs.running(None, *words) as feed:
            _wait_for_place(place, last, feed)
            feed.terminate()
            self._programs.finish(feed)
        narrator.remark(f"published the last {LINES} entries, or all if there are fewer; {other_user.name} cannot read them")


def _wait_for_place(file: Path, last: Cursor, feed: subprocess.Popen[str]) -> None:
    """Wait until *feed* has saved in *file* that the bus has routed the entry *last*."""
    pause = threading.Event()
    for _ in range(int(TIMEOUT_SECONDS / PAUSE_SECONDS)):
        place = CursorFile(file).load()
        if place is not None and (place.is_same_entry(last) or place.realtime >= last.realtime):
            return
        if feed.poll() is not None:
            raise DemoError(f"the program ended with status {feed.returncode}: {''.join(feed.communicate())}")
        pause.wait(PAUSE_SECONDS)
    raise DemoError("the journal entries were not published")
