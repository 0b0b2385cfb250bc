"""The tables that are compared, by polars, as plain as its expressions have them."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from sbus_archive.tables.schema import CALL_SECONDS, TOP

_HOURLY = ("date", "hour", "host")
_SUMS = ("messages", "bytes", "recipients", "queued", "discarded", "undeliverable")


def write_tables(archive: Path, folder: Path) -> None:
    """Write ``traffic``, ``users`` and ``calls`` of *archive* into *folder*."""
    records = pl.scan_parquet(f"{archive}/date=*/hour=*/host=*/*.parquet", hive_partitioning=True)
    for name, rows in (("traffic", _traffic(records)), ("users", _users(records)), ("calls", _calls(records))):
        rows.collect(engine="streaming").write_parquet(folder / f"{name}.parquet")


def _traffic(records: pl.LazyFrame) -> pl.LazyFrame:
    """Return messages by minute, prefix and user; only the most used prefixes of a host's hour have a name."""
    counted = (
        records.filter(pl.col("kind") == "message")
        .with_columns(
            minute=pl.col("ts") // 60_000_000_000,
            prefix=pl.col("key").str.extract(r"^([^/]*(?:/[^/]*)?)"),
            messages=pl.lit(1, pl.Int64),
            bytes=pl.col("payload_bytes").cast(pl.Int64),
            undeliverable=(pl.col("recipients") == 0).cast(pl.Int64),
        )
        .group_by(*_HOURLY, "minute", "prefix", "uid")
        .agg(pl.col(*_SUMS).sum())
    )
    weighed = counted.group_by(*_HOURLY, "prefix").agg(pl.col("messages").sum().alias("weight"))
    ranked = weighed.sort([*_HOURLY, "weight", "prefix"], descending=[False, False, False, True, False]).with_columns(
        place=pl.int_range(pl.len()).over(*_HOURLY)
    )
    named = counted.join(ranked, on=[*_HOURLY, "prefix"]).with_columns(prefix=pl.when(pl.col("place") < TOP).then("prefix"))
    return named.group_by(*_HOURLY, "minute", "prefix", "uid").agg(pl.col(*_SUMS).sum())


def _users(records: pl.LazyFrame) -> pl.LazyFrame:
    """Return what each user and unit did."""
    kind, role = pl.col("kind"), pl.col("call_role")
    is_message = kind == "message"
    acts = records.filter(kind.is_in(["message", "connect", "subscribe", "denial", "loss"]) & (pl.col("conn") != 0))
    return acts.group_by(*_HOURLY, "uid", "unit").agg(
        connections=(kind == "connect").sum(),
        messages=is_message.sum(),
        bytes=pl.col("payload_bytes").filter(is_message).cast(pl.Int64).sum(),
        recipients=pl.col("recipients").filter(is_message).cast(pl.Int64).sum(),
        requests=(is_message & (role == "request")).sum(),
        replies=(is_message & (role == "reply")).sum(),
        subscriptions=(kind == "subscribe").sum(),
        denials=pl.col("lost").fill_null(1).filter(kind == "denial").sum(),
        lost=pl.col("lost").filter(kind == "loss").sum(),
    )


def _calls(records: pl.LazyFrame) -> pl.LazyFrame:
    """Return calls by command and parties, with exact percentiles."""
    parts = records.filter((pl.col("kind") == "message") & pl.col("call_id").is_not_null())
    columns = [*_HOURLY, "call_id", "seq", "ts", "call_cmd", "uid", "unit", "call_exp", "recipients"]
    requests = parts.filter(pl.col("call_role") == "request").select(columns).unique([*_HOURLY, "call_id"])
    replies = parts.filter(pl.col("call_role") == "reply").select(
        "host", "call_id", reply_seq="seq", reply_ts="ts", callee_uid="uid", callee_unit="unit", failed="call_failed"
    )
    waited = pl.col("reply_ts") - pl.col("ts")
    first = replies.group_by("host", "call_id").agg(pl.all().sort_by("reply_seq").first())
    joined = requests.join(first, on=["host", "call_id"], how="left").with_columns(
        replied=(pl.col("reply_seq") > pl.col("seq")) & waited.is_between(0, CALL_SECONDS * 10**9), latency=waited // 1000
    )
    replied = pl.col("replied").fill_null(value=False)
    late = replied & (waited > pl.col("call_exp") * 10**9).fill_null(value=False)
    latency = pl.col("latency").filter(replied)
    return joined.group_by(*_HOURLY, "call_cmd", "uid", "unit", "callee_uid", "callee_unit").agg(
        calls=pl.len(),
        answered=(replied & ~late).sum(),
        errors=(replied & ~late & pl.col("failed")).sum(),
        timeouts=late.sum(),
        unanswered=(~replied).sum(),
        undelivered=(~replied & (pl.col("recipients") == 0)).sum(),
        latency_p50_us=latency.quantile(0.5),
        latency_p90_us=latency.quantile(0.9),
        latency_p99_us=latency.quantile(0.99),
        latency_max_us=latency.max(),
    )
