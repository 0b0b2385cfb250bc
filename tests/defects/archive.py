"""Defects of the pipeline, of shipping and of the report. Their tests share one Spark, and have fewer runs and kills."""

from __future__ import annotations

from tests.defects.defect import Defect

_HERE = "tests/integration/"

ARCHIVE = (
    # The pipeline, whose tests share one Spark.
    Defect(
        "sbus_archive/pipeline/live/calls.py",
        'slow = calls.where(F.col("reply") - F.col("q.ts") >= slow_ns)',
        'slow = calls.where(F.col("reply") - F.col("q.ts") > slow_ns)',
        "a call of exactly the limit is not slow",
        (f"{_HERE}spark/test_live_sums.py::test_slow_calls_are_those_of_a_plain_model",),
    ),
    Defect(
        "sbus_archive/pipeline/live/calls.py",
        'minute = F.expr(f"reply div {_MINUTE_NS}").alias("minute")',
        'minute = F.expr(f"q.ts div {_MINUTE_NS}").alias("minute")',
        "a slow call counts in the minute of its request",
        (f"{_HERE}spark/test_live_sums.py::test_slow_calls_are_those_of_a_plain_model",),
    ),
    Defect(
        "sbus_archive/pipeline/live/baseline.py",
        'values = grid.select("prefix", F.coalesce("messages", F.lit(0)).alias("value"))',
        'values = grid.select("prefix", F.col("messages").alias("value"))',
        "minutes without a message are left out of the median",
        (f"{_HERE}spark/test_live_sums.py::test_the_baseline_agrees_with_a_plain_model",),
    ),
    Defect(
        "sbus_archive/pipeline/live/baseline.py",
        'F.unix_seconds("minute").alias("second"))\n        .agg(F.sum("messages")',
        'F.unix_seconds("minute").alias("second"))\n        .agg(F.max("messages")',
        "rows of one minute are not added",
        (f"{_HERE}spark/test_live_sums.py::test_the_baseline_agrees_with_a_plain_model",),
    ),
    Defect(
        "sbus_archive/pipeline/run.py",
        "        return hours | {hour.preceding for hour in hours}",
        "        return hours",
        "a reply in the next hour does not compute the calls again",
        (
            f"{_HERE}spark/test_pipeline.py::test_any_split_into_runs_gives_the_same_tables",
            f"{_HERE}spark/test_pipeline.py::test_a_reply_in_the_next_hour_redoes_the_calls_of_this_one",
        ),
    ),
    Defect(
        "sbus_archive/pipeline/plan.py",
        "            return HourTask(manifest, (CALLS.name, LINKS.name))",
        "            return HourTask(manifest, (CALLS.name,))",
        "the next state of a link does not compute the links again",
        (f"{_HERE}spark/test_pipeline.py::test_a_state_in_the_next_hour_ends_a_difference_of_this_one",),
    ),
    Defect(
        "sbus_archive/pipeline/plan.py",
        "if (entry.host, entry.sha256) not in digests:",
        "if True:",
        "rows that are there under two names are read twice",
        (
            "tests/unit/sbus_archive/pipeline",
            f"{_HERE}spark/test_pipeline.py::test_any_split_into_runs_gives_the_same_tables",
        ),
    ),
    # Shipping, with half of the kills.
    Defect(
        "sbus_archive/shipping/upload.py",
        (
            "        if (remote := self._remote(name)) is not None:\n"
            "            self._compare(entry, remote)\n"
            "            return Outcome.PRESENT\n"
        ),
        "",
        "a segment that is there is shipped again after a kill",
        (
            "tests/unit/sbus_archive/shipping",
            f"{_HERE}test_shipping.py::test_killed_anywhere_the_remote_archive_is_valid_and_becomes_equal",
        ),
    ),
    Defect(
        "sbus_archive/shipping/service.py",
        "            self.counts.unreadable += 1\n",
        "            self._done.add(name)\n            self.counts.unreadable += 1\n",
        "a segment that cannot be read is never tried again",
        (
            "tests/unit/sbus_archive/shipping",
            f"{_HERE}test_shipping.py::test_damaged_and_hostile_segments_are_skipped_and_the_rest_is_shipped",
        ),
    ),
    Defect(
        "sbus_archive/shipping/destination.py",
        "        elif not self._store.exists(entry.path):\n            return False\n        self._store.delete(entry.path)",
        "        else:\n            return False\n        self._store.delete(entry.path)",
        "a kill between mark and deletion keeps the segment in the destination",
        (
            "tests/unit/sbus_archive/shipping",
            f"{_HERE}test_shipping.py::test_what_the_recorder_removed_stays_remote_and_what_expires_remote_stays_local",
        ),
    ),
    # Programs with Spark.
    Defect(
        "sbusctl/fresh_tables.py",
        "    _run_program(archive, tables)\n\n\ndef has_segments",
        "    if not isinstance(tables, Path) or not tables.exists():\n        _run_program(archive, tables)\n\n\ndef has_segments",
        "report --now does not update tables that exist",
        (f"{_HERE}test_report_now.py::test_messages_of_the_last_seconds_are_on_the_page",),
    ),
    Defect(
        "sbus_archive/pipeline/session.py",
        "    session.sparkContext.addPyFile(str(target))",
        "    session.sparkContext.addFile(str(target))",
        "executors do not import the package that they are sent",
        (f"{_HERE}test_remote_tables.py::test_the_executors_of_a_cluster_write_the_objects",),
    ),
    Defect(
        "sbus_archive/pipeline/live/job.py",
        (
            "            self._state.fold(batch, groups, losses, self.settings, self._baselines.prefixes, calls=calls)\n"
            "            self._state.save(self.folder)"
        ),
        "            self._state.fold(batch, groups, losses, self.settings, self._baselines.prefixes, calls=calls)",
        "counters are lost by a kill",
        (f"{_HERE}test_live.py::test_counters_and_alerts_are_exact_through_kills",),
    ),
    Defect(
        "sbus_archive/pipeline/live/job.py",
        (
            "                # A decision is on disk before it is published, so that it is published after a "
            "kill, and is not decided again.\n"
            "                self._state.save(self.folder)"
        ),
        "                pass",
        "a decision is published before it is on disk",
        (f"{_HERE}test_live_alerts.py::test_the_program_stores_each_alert_once",),
    ),
)
