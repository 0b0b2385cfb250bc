"""Whether what a program says on standard error goes to the journal. Spec: $JOURNAL_STREAM in systemd.exec(5)."""

from __future__ import annotations

import os
from collections.abc import Mapping


def is_journal_stream(environment: Mapping[str, str]) -> bool:
    """Return whether standard error is the stream that systemd says it connected to the journal, as ``device:inode``."""
    try:
        error = os.fstat(2)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM", "") == f"{error.st_dev}:{error.st_ino}"
