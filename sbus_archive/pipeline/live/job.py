"""The streaming job: counts the rows of the live bus minute by minute, and publishes alerts. Spec: sbus-live(8).

Spark calls :meth:`LiveJob.fold` for each batch, in a thread of its own. The thread of :meth:`LiveJob.run` closes minutes by the clock,
because Spark runs no batch while the bus is quiet. Both hold the lock while they use the state.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation names it

from sbus.errors import RemoteRefusal
from sbus.protocol.errors import ErrorCode
from sbus.sync.bus import Bus
from sbus_archive.pipeline.errors import PermanentError
from sbus_archive.pipeline.live.alerts import Usual
from sbus_archive.pipeline.live.baseline import Baseline, Baselines, compute, hour_of
from sbus_archive.pipeline.live.calls import calls_in
from sbus_archive.pipeline.live.live_state import Decided, LiveState, Losses
from sbus_archive.pipeline.live.minutes import Group
from sbus_archive.pipeline.live.publication import AlertPublisher, publish_decided
from sbus_archive.pipeline.measures import prefix, total
from sbus_archive.pipeline.source.datasource import register
from sbus_archive.pipeline.source.outbox import Outbox
from sbus_archive.record.schema import RowKind
from sbus_archive.tables.hours import Hour
from sbus_programs.config.live import ANOMALY, LiveSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SECONDS = 30.0
_VERSION = "v1"
"""The first line of each file of Spark's logs of offsets and commits."""


def check_tap(address: str | None) -> None:
    """Check that this user may tap the bus.

    Raises:
        PermanentError: the bus refuses it.
        SbusError, OSError: the bus cannot be reached.
    """
    try:
        with Bus.connect(address, timeout=_SECONDS) as bus, bus.tap(b"none"):
            pass
    except RemoteRefusal as error:
        if error.code not in {ErrorCode.EPERM, ErrorCode.EACCES}:
            raise
        raise PermanentError(f"cannot tap the bus: {error.said}. Allow this user with tap under [rights] in sbusd.toml(5)") from None


def check_checkpoint(checkpoint: Path) -> None:
    """Check the files of *checkpoint* that Spark reads when a query starts. A missing directory is valid.

    Raises:
        PermanentError: one of them is damaged.
        OSError: it cannot be read.
    """
    if (checkpoint / "metadata").exists():
        query_id(checkpoint)
    for log in ("offsets", "commits"):
        newest = max(
            (path for path in (checkpoint / log).glob("[0-9]*") if path.name.isdecimal()), key=lambda path: int(path.name), default=None
        )
        if newest is None:
            continue
        try:
            version, *lines = newest.read_text("utf-8").splitlines()
            values = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            raise _damaged(checkpoint, newest) from None
        if version != _VERSION or not values:
            raise _damaged(checkpoint, newest)


def query_id(checkpoint: Path) -> str:
    """Return the id of the query that uses *checkpoint*. Raises PermanentError if there is none."""
    path = checkpoint / "metadata"
    try:
        return str(json.loads(path.read_bytes())["id"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(checkpoint, path) from None


def _damaged(checkpoint: Path, path: Path) -> PermanentError:
    """Return the error about the file *path*."""
    return PermanentError(f"{path}: damaged checkpoint. Remove the directory {checkpoint} to begin a new one; no counter is lost")


CHECKPOINT = "checkpoint"
OUTBOX = "outbox"

COLUMNS = (
    "ts bigint, kind string, key string, uid bigint, payload_bytes int, discarded int, lost bigint, duration bigint,"
    " call_id bigint, call_role string"
)
"""The columns that the job reads: no payloads."""

TRIGGER = "1 second"

_MINUTE_NS = 60 * 10**9
_TICK_SECONDS = 1
_AHEAD_SECONDS = 120
"""Time before an hour at which its baseline is computed, so that its prefixes are known when the hour begins."""


@dataclass(slots=True)
class LiveJob:
    """The job with its state in ``folder``. The caller holds the run lock of the folder."""

    spark: SparkSession
    settings: LiveSettings
    folder: Path
    tables: Path
    address: str | None
    warn: Callable[[str], None]
    """Prints one line."""
    host: str = field(default_factory=socket.gethostname)
    _state: LiveState = field(default_factory=LiveState)
    _baselines: Baselines = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _warned: str = ""
    _publisher: AlertPublisher = field(init=False)
    _not_stored: str = ""
    """The last printed reason why alerts are not stored."""

    def __post_init__(self) -> None:
        self._baselines = Baselines(self._compute)
        self._publisher = AlertPublisher(self.address)

    def _compute(self, hour: Hour) -> Baseline:
        """Return the baseline of *hour*."""
        return compute(self.spark, self.tables, hour, self.host, self.settings.anomaly)

    def run(self) -> None:
        """Run until an error, or until the process is killed.

        Raises:
            PermanentError: the state or the checkpoint is damaged, or the bus refuses the tap.
            SbusError, OSError: the bus or the directory of the state cannot be used.
        """
        self._state = LiveState.load(self.folder)
        self._publisher.had_store = bool(self._state.counts["alerts_stored"])
        check_checkpoint(self.folder / CHECKPOINT)
        check_tap(self.address)
        with self._lock:
            query = self._start()
            self._state.begin(query_id(self.folder / CHECKPOINT), time.time())
            self._state.save(self.folder)
        try:
            while not query.awaitTermination(_TICK_SECONDS):
                self._tick(time.time())
        finally:
            query.stop()

    def _start(self) -> StreamingQuery:
        """Start the query. Its first batch waits for the lock."""
        register(self.spark)
        reader = self.spark.readStream.format("sbus").schema(COLUMNS)
        if self.address is not None:
            reader = reader.option("address", self.address)
        writer = reader.load().writeStream.foreachBatch(self.fold).trigger(processingTime=TRIGGER)
        return writer.option("checkpointLocation", str(self.folder / CHECKPOINT)).start()

    def fold(self, rows: DataFrame, batch: int) -> None:
        """Add the sums of *rows* to the state, unless this batch is in it."""
        groups, losses, has_calls = summed(rows)
        calls = None
        if has_calls:
            with self._lock:
                known = list(self._state.calls.by_number)
            calls = calls_in(rows, known, int(self.settings.slow_call * 1e9))
        with self._lock:
            self._state.fold(batch, groups, losses, self.settings, self._baselines.prefixes, calls=calls)
            self._state.save(self.folder)

    def _tick(self, now: float) -> None:
        """Close the minutes that have ended, and publish what was decided."""
        with self._lock:
            due = self._state.due(self.settings, now)
        # Spark computes them while batches are counted.
        problem = self._baselines.prepare([hour_of(int(moment // 60)) for moment in (now, now + _AHEAD_SECONDS)] + [*map(hour_of, due)])
        self._warn_once(f"no alerts for anomalies: {problem}" if problem else "")
        with self._lock:
            dropped = self._state.counts["alerts_dropped"]
            if self._state.close(self.settings, self._usual, now, self.host):
                # A decision is on disk before it is published, so that it is published after a kill, and is not decided again.
                self._state.save(self.folder)
            dropped = self._state.counts["alerts_dropped"] - dropped
            pending = list(self._state.pending)
        if dropped:
            self.warn(f"dropped {dropped} alerts, because too many wait for publication")
        if pending:
            self._publish(pending)

    def _usual(self, minute: int) -> Mapping[str, Usual] | None:
        """Return the usual numbers in the hour of *minute*; None if they are not known."""
        return self._baselines.usual(hour_of(minute), self._state.raised.get(ANOMALY, ()))

    def _publish(self, pending: list[Decided]) -> None:
        """Publish *pending*, and remove them from the state. If the bus cannot be reached, they stay for the next attempt."""
        outbox = Outbox(self.folder / OUTBOX, 1, "repeat")
        publisher = self._publisher
        stored, not_stored = publisher.stored, publisher.not_stored
        result = publish_decided(outbox, self._state.series, pending, publisher.connect, lambda: publisher.is_repeat_harmless)
        if publisher.problem and publisher.problem != self._not_stored:
            self.warn(f"alerts are published, but not stored, so a kill may repeat one: {publisher.problem}")
        self._not_stored = publisher.problem
        for key in result.repeated:
            self.warn(f"published an alert again that the bus may already have received: {key}")
        if result.refused:
            self.warn(f"dropped {len(result.refused)} alerts that the bus refused, the first because {result.refused[0]}")
        if result.problem:
            self._warn_once(f"cannot publish alerts, will try again: {result.problem}")
        if result.last:
            with self._lock:
                self._state.counts["alerts_refused"] += len(result.refused)
                self._state.counts["alerts_stored"] += publisher.stored - stored
                self._state.counts["alerts_not_stored"] += publisher.not_stored - not_stored
                self._state.pending = [each for each in self._state.pending if each.number > result.last]
                self._state.save(self.folder)

    def _warn_once(self, line: str) -> None:
        """Print *line*, unless it is empty or the last one."""
        if line and line != self._warned:
            self.warn(line)
        self._warned = line or self._warned


def summed(rows: DataFrame) -> tuple[list[Group], Losses, bool]:
    """Return the sums of the rows of one batch, its losses, and whether it has parts of calls."""

    def sum_where(column: str, *kinds: str) -> Column:
        return total(F.when(F.col("kind").isin(*kinds), F.col(column)))

    message = RowKind.MESSAGE.value
    missing = (RowKind.TAP_LOSS.value, RowKind.GAP.value, RowKind.RESTART.value)
    minute = F.expr(f"ts div {_MINUTE_NS}")
    is_missing = F.col("kind").isin(*missing)
    grouped = rows.groupBy(minute.alias("minute"), prefix().alias("prefix"), "uid", is_missing.alias("missing")).agg(
        F.count_if(F.col("kind") == message).alias("messages"),
        sum_where("payload_bytes", message).alias("bytes"),
        sum_where("discarded", message).alias("discarded"),
        sum_where("lost", RowKind.LOSS.value).alias("lost"),
        sum_where("lost", RowKind.DENIAL.value).alias("denials"),
        F.count("call_id").alias("calls"),
        sum_where("lost", *missing).alias("gaps"),
        # A row without a number is an interruption of unknown size.
        F.count_if(is_missing & F.col("lost").isNull()).alias("interruptions"),
        F.min(F.when(is_missing, F.expr(f"(ts - coalesce(duration, 0)) div {_MINUTE_NS}"))).alias("first"),
    )
    groups, lost, interruptions, firsts, lasts, has_calls = [], 0, 0, [], [], False
    for row in grouped.collect():
        has_calls |= row["calls"] > 0
        if row["missing"]:
            lost += row["gaps"]
            interruptions += row["interruptions"]
            firsts.append(row["first"])
            lasts.append(row["minute"])
            continue
        counts = (row["messages"], row["bytes"], row["discarded"], row["lost"], row["denials"], 0)
        if any(counts):
            groups.append(Group(row["minute"], row["prefix"], row["uid"], counts))
    return groups, Losses(lost, interruptions, min(firsts, default=None), max(lasts, default=None)), has_calls
