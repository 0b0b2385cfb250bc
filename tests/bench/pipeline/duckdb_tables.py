"""The tables that are compared, by DuckDB, as plain as its SQL has them."""

from __future__ import annotations

from pathlib import Path

import duckdb

from sbus_archive.tables.schema import CALL_SECONDS, TOP

_SUMS = ["messages", "bytes", "recipients", "queued", "discarded", "undeliverable"]

_RECORDS = "read_parquet('{archive}/date=*/hour=*/host=*/*.parquet', hive_partitioning = true)"

_TRAFFIC = f"""
    with counted as (
        select date, hour, host, ts // 60000000000 as minute, array_to_string(string_split(key, '/')[1:2], '/') as prefix, uid,
               count(*) as messages, sum(payload_bytes) as bytes, sum(recipients) as recipients, sum(queued) as queued,
               sum(discarded) as discarded, count_if(recipients = 0) as undeliverable
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


_FLOWS = f"""
    with events as (select * from {_RECORDS} where kind in ('snapshot', 'subscribe', 'unsubscribe', 'disconnect')),
    begun as (
        select date, hour, host, conn, key as pattern, any_value(uid) as to_uid, any_value(unit) as to_unit, min(seq) as since
        from events where kind in ('snapshot', 'subscribe') group by all),
    subscriptions as (
        select b.*, coalesce(min(e.seq), 9223372036854775807) as until
        from begun b left join events e on b.date = e.date and b.hour = e.hour and b.host = e.host and b.conn = e.conn and e.seq > b.since
          and (e.kind = 'disconnect' or e.kind = 'unsubscribe' and e.key = b.pattern)
        group by all),
    messages as (
        select date, hour, host, seq, key, uid, unit, recipients, missed, to_conn, payload_bytes
        from {_RECORDS} where kind = 'message' and recipients > 0),
    keys as (select distinct date, hour, host, key from messages),
    routes as (
        select date, hour, host, key, conn, to_uid, to_unit, since, until
        from keys join subscriptions using (date, hour, host)
        where key = pattern or pattern like '%/' and (starts_with(key, pattern) or key || '/' = pattern)),
    candidates as (
        select distinct on (date, hour, host, seq, conn) date, hour, host, seq, conn, to_uid, to_unit
        from messages join routes using (date, hour, host, key)
        where seq between since and until and (to_conn is null or to_conn = conn) and not coalesce(list_contains(missed, conn), false)),
    counted as (select date, hour, host, seq, count(*) as found from candidates group by all),
    judged as (
        select m.*, case when coalesce(len(missed), 1) > 0 and coalesce(found, 0) <= recipients then coalesce(found, 0) else 0 end as named
        from messages m left join counted using (date, hour, host, seq)),
    received as (
        select date, hour, host, key, uid, unit, to_uid, to_unit, 1 as times, payload_bytes
        from judged join candidates using (date, hour, host, seq) where named > 0
        union all
        select date, hour, host, key, uid, unit, null, null, recipients - named, payload_bytes from judged where recipients > named),
    summed as (
        select date, hour, host, uid as from_uid, unit as from_unit, array_to_string(string_split(key, '/')[1:2], '/') as prefix, to_uid,
               to_unit, sum(times) as deliveries, sum(times * payload_bytes) as bytes
        from received group by all),
    ranked as (
        select date, hour, host, prefix, row_number() over (partition by date, hour, host order by sum(deliveries) desc, prefix) as place
        from summed group by date, hour, host, prefix)
    select date, hour, host, from_uid, from_unit, case when place <= {TOP} then prefix end as prefix, to_uid, to_unit,
           sum(deliveries) as deliveries, sum(bytes) as bytes
    from summed join ranked using (date, hour, host, prefix) group by all
"""

_LOSSES = f"""
    select date, hour, host, ts // 60000000000 as minute,
           case kind when 'message' then 'discarded' when 'loss' then 'lost' when 'disconnect' then 'abandoned' else kind end as cause,
           case when kind in ('message', 'loss', 'disconnect') then uid end as uid,
           case when kind in ('message', 'loss', 'disconnect') then unit end as unit,
           case when kind = 'message' then array_to_string(string_split(key, '/')[1:2], '/') end as prefix,
           case when kind <> 'message' then reason end as reason, count(*) as events,
           sum(case when kind = 'message' then discarded else lost end) as count, sum(duration // 1000) as duration_us
    from {_RECORDS}
    where kind = 'message' and discarded > 0 or kind = 'disconnect' and lost > 0 or kind in ('loss', 'tap_loss', 'gap', 'restart')
    group by all
"""

_SECURITY = f"""
    select date, hour, host,
           case when code in ('EACCES', 'EPERM') then 'denial' when code in ('EDQUOT', 'EMFILE') then 'quota' else 'misbehaviour' end
               as class,
           code, reason, uid, unit, key, sum(coalesce(lost, 1)) as events, min(ts) as first, max(ts) as last
    from {_RECORDS} where kind = 'denial' group by all
"""

_RELAY = f"""
    select date, hour, host, twin, call_cmd as cmd, code as outcome, count(*) as attempts, count_if(attempt > 1) as retries,
           count(distinct call_id) as calls, max(duration) // 1000 as longest_us
    from {_RECORDS} where kind = 'relay' group by all
"""

_TABLES = {
    "traffic": _TRAFFIC,
    "users": _USERS,
    "calls": _CALLS,
    "flows": _FLOWS,
    "losses": _LOSSES,
    "security": _SECURITY,
    "relay": _RELAY,
}


def write_tables(archive: Path, folder: Path) -> None:
    """Write seven tables of *archive* into *folder*: patterns of subscriptions have no stars there."""
    with duckdb.connect() as engine:
        for name, query in _TABLES.items():
            engine.sql(query.format(archive=archive)).write_parquet(str(folder / f"{name}.parquet"))
