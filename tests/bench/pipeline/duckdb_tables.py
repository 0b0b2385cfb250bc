"""The tables that are compared, by DuckDB, as plain as its SQL has them."""

from __future__ import annotations

from pathlib import Path

import duckdb

from sbusd.archive.tables.schema import CALL_SECONDS, TOP

_SUMS = ["messages", "bytes", "recipients", "queued", "discarded", "unheard"]

_RECORDS = "read_parquet('{archive}/date=*/hour=*/host=*/*.parquet', hive_partitioning = true)"

_TRAFFIC = f"""
    with counted as (
        select date, hour, host, ts // 60000000000 as minute, array_to_string(string_split(key, '/')[1:2], '/') as prefix, uid,
               count(*) as messages, sum(payload_bytes) as bytes, sum(recipients) as recipients, sum(queued) as queued,
               sum(discarded) as discarded, count_if(recipients = 0) as unheard
        from {_RECORDS} where kind = 'message' group by all),
    ranked as (
        select date, hour, host, prefix, row_number() over (partition by date, hour, host order by sum(messages) desc, prefix) as place
        from counted group by date, hour, host, prefix)
    select date, hour, host, minute, case when place <= {TOP} then prefix end as prefix, uid,
           {", ".join(f"sum({name}) as {name}" for name in _SUMS)}
    from counted join ranked using (date, hour, host, prefix)
    group by all
"""

_USERS = f"""
    select date, hour, host, uid, unit, count_if(kind = 'connect') as connections, count_if(kind = 'message') as messages,
           sum(case when kind = 'message' then payload_bytes end) as bytes,
           sum(case when kind = 'message' then recipients end) as recipients,
           count_if(kind = 'message' and call_role = 'request') as requests,
           count_if(kind = 'message' and call_role = 'reply') as replies, count_if(kind = 'subscribe') as subscriptions,
           sum(case when kind = 'denial' then coalesce(lost, 1) end) as denials, sum(case when kind = 'loss' then lost end) as lost
    from {_RECORDS} where kind in ('message', 'connect', 'subscribe', 'denial', 'loss') and conn <> 0 group by all
"""

_CALLS = f"""
    with parts as (select * from {_RECORDS} where kind = 'message' and call_id is not null),
    requests as (
        select date, hour, host, call_id, min_by(struct_pack(seq, ts, call_cmd, uid, unit, call_exp, recipients), seq) as q
        from parts where call_role = 'request' group by all),
    calls as (
        select r.date, r.hour, r.host, call_id, any_value(q) as q,
               min_by(struct_pack(seq := p.seq, ts := p.ts, uid := p.uid, unit := p.unit, failed := p.call_failed), p.seq) as r
        from requests r left join (select * from parts where call_role = 'reply') p
          using (host, call_id) where p.seq is null or p.seq > q.seq and p.ts between q.ts and q.ts + {CALL_SECONDS}000000000
        group by all),
    judged as (
        select *, (r.ts - q.ts) // 1000 as latency, coalesce(r.ts - q.ts > q.call_exp * 1e9, false) as late from calls)
    select date, hour, host, q.call_cmd as cmd, q.uid as caller_uid, q.unit as caller_unit, r.uid as callee_uid, r.unit as callee_unit,
           count(*) as calls, count_if(r.seq is not null and not late) as answered,
           count_if(r.seq is not null and not late and r.failed) as errors, count_if(late) as timeouts,
           count_if(r.seq is null) as unanswered, count_if(r.seq is null and q.recipients = 0) as undelivered,
           quantile_disc(latency, [0.5, 0.9, 0.99]) as percentiles, max(latency) as latency_max_us
    from judged group by all
"""


def write_tables(archive: Path, folder: Path) -> None:
    """Write ``traffic``, ``users`` and ``calls`` of *archive* into *folder*."""
    with duckdb.connect() as engine:
        for name, query in (("traffic", _TRAFFIC), ("users", _USERS), ("calls", _CALLS)):
            engine.sql(query.format(archive=archive)).write_parquet(str(folder / f"{name}.parquet"))
