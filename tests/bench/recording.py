"""How fast the recorder is on one core: packets of the tap to rows on the disk, and a write-ahead to a segment. Asserts nothing.

Run: ``python -m tests.bench.recording [--rows 1000000] [--folder FOLDER]``. The rate through a socket is lower by what reading costs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import resource
import tempfile
import time
from pathlib import Path

from sbus_archive.record.calls import CallRecognizer
from sbus_archive.record.segments import RecordReader
from sbus_archive.recorder.converter import convert
from sbus_archive.recorder.recording import Recording
from sbus_archive.recorder.rows import PayloadPolicy, RowBuilder
from sbus_archive.recorder.wal import read_wal
from sbus_programs.config.recorder import RecorderSettings
from sbus_programs.systemd.log_records import ServiceLog

KEYS = 10_000
CONNECTIONS = 200
PACKETS = 50_000
"""The number of prepared packets, which are sent repeatedly."""


def packets() -> list[bytes]:
    """Return packets of the tap with a spread of keys as real traffic has it: few keys have most; two of five are parts of calls."""
    chance = random.Random(1)
    made = []
    for number in range(PACKETS):
        conn = chance.randrange(1, CONNECTIONS)
        fact = {"kind": "message", "time": time.time_ns(), "id": conn, "cred": f"!/cred/100/{1000 + conn % 20}/{4000 + conn}"}
        fact |= {"recipients": 2, "queued": 0, "discarded": 0}
        key = b"app/%d/state" % min(int(chance.paretovariate(0.5)), KEYS)
        payload = chance.randbytes(64)
        if number % 5 < 2:
            ret = f"!/conn/{conn}/ret/{number // 5}"
            envelope = {"ver": 1, "uid": f"{number // 5:x}", "cmd": "add", "exp": 30, "dat": "AAAA", "ret": ret, "err": ""}
            key, payload = (ret.encode() if number % 5 else b"rpc/add"), json.dumps(envelope).encode()
        made.append(b"CMSG !/tap\0" + json.dumps(fact, separators=(",", ":")).encode() + b"\nMSG " + key + b"\0" + payload)
    return made


def measure(rows: int, folder: Path) -> dict[str, float]:
    """Record *rows* rows below *folder*, convert them, and return the figures."""
    spool, archive = folder / "spool", folder / "archive"
    spool.mkdir()
    archive.mkdir()
    settings = dataclasses.replace(RecorderSettings(spool=str(spool), archive=str(archive)), rotate_bytes=1 << 30, rotate_rows=10_000_000)
    files: list[Path] = []
    recording = Recording(settings, "bench", 1, ServiceLog("sbus-recorder"), files.append)
    maker = RowBuilder(PayloadPolicy(), CallRecognizer("bench", "boot"), unit_at=lambda *_: None)
    reported = packets()
    begun, busy = time.perf_counter(), time.process_time()
    for number in range(rows):
        row = maker.row(reported[number % PACKETS])
        if row is not None:
            recording.add(row)
    recording.close()
    seconds, busy = time.perf_counter() - begun, time.process_time() - busy
    size = sum(path.stat().st_size for path in files)
    begun = time.perf_counter()
    for path in files:
        convert(archive, read_wal(path))
    converted = time.perf_counter() - begun
    kept = sum(entry.bytes for entry in RecordReader(archive).entries())
    return {
        "rows": recording.recorded,
        "recorded rows/s": recording.recorded / seconds,
        "recorded rows/s of processor time": recording.recorded / busy,
        "write-ahead bytes/row": size / recording.recorded,
        "converted rows/s": recording.recorded / converted,
        "segment bytes/row": kept / recording.recorded,
        "peak memory MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured; default: the temporary folder's")
    options = parser.parse_args()
    # One core: what Arrow would do on others is not the recorder's to count on.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name, value in measure(options.rows, Path(folder)).items():
            print(f"{name:>36}  {value:12,.0f}")


if __name__ == "__main__":
    main()
