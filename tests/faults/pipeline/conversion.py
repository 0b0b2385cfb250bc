"""The recorder's conversion of write-ahead files, as a process that can be killed: ``python -m … SPOOL ARCHIVE HOST``."""

from __future__ import annotations

import sys
from pathlib import Path

from sbus_archive.recorder.converter import Converter
from sbus_archive.recorder.retention import Retention
from sbus_archive.recorder.wal import wal_files
from sbus_programs.systemd.log_records import ServiceLog

_FOREVER = 1e9


def main() -> None:
    """Convert all files, and merge the index of past days."""
    spool, archive, host = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    retention = Retention(archive, host, 1 << 40, _FOREVER)
    retention.load()
    converter = Converter(archive, retention, ServiceLog("conversion"))
    for path in wal_files(spool):
        converter.submit(path)
    converter.start()
    if not converter.close() or converter.failure is not None:
        raise SystemExit(f"conversion: {converter.failure}")


if __name__ == "__main__":
    main()
