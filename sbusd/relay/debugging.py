"""``--debug``: each try to reach another host, as a line on standard error."""

from __future__ import annotations

import sys

from sbusd.protocol.printable import printable
from sbusd.relay.attempts import Attempt


class ErrorWitness:
    """Writes each attempt to standard error."""

    def saw(self, attempt: Attempt) -> None:
        """Write one line."""
        reason = f": {attempt.reason}" if attempt.reason else ""
        words = f"attempt {attempt.number} of {attempt.command} to host {attempt.twin}: {attempt.outcome}{reason}"
        print(f"sbus-relay: {printable(words)} ({attempt.duration_ns / 1e6:.1f} ms)", file=sys.stderr, flush=True)
