"""A made-up archive of any size, with a spread as real traffic has it; and the first part of one as an archive of its own.

Of three hosts, a million records an hour each or less. Forty programs of twenty users, few of which do most, publish under ten thousand
keys, few of which have most messages; two of five records are parts of calls of fifty commands, each served by one program; one request
in fifty stays without a reply. Occasionally a message is rejected or lost.
"""

from __future__ import annotations

import os
from pathlib import Path

import duckdb

from sbus_archive.record.index import write_entry
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import SCHEMA
from sbus_archive.record.segments import RecordReader, write_segments

BEGIN = 1_795_132_800 * 10**9
"""2026-11-20 00:00 UTC, in nanoseconds."""

HOSTS = ("alpha", "beta", "gamma")

SEGMENT_ROWS = 1_000_000
"""Records of a host's hour: what the recorder puts into one segment at most."""

LEAST_SEGMENTS = 12
"""Segments of a small archive: four hours, so that a quarter of it is an hour."""

SUBSCRIPTIONS = 200
"""Subscriptions of a host that each hour begins with."""

_RECORDS = """
    select i, h, u, v, w, app, kind, role, cmd,
           case when role = 'reply' then cmd % 40 else app end as actor
    from (
        select i, h, h % 1000 / 1000.0 as u, (h // 1000) % 1000 as v, (h // 1000000) % 1000000 as w,
               floor(exp(ln(40) * (((h // 1000000) % 1000) / 1000.0)))::bigint - 1 as app,
               -- Both parts of a call have the same command: it depends only on their common number.
               floor(exp(ln(50) * (hash(i // 2 + {first}) % 1000 / 1000.0)))::bigint as cmd,
               case when i < {subscriptions} then 'snapshot'
                    when v = 0 then 'denial' when v = 1 then 'connect' when v = 2 then 'disconnect' when v = 3 and w < 20000 then 'loss'
                    else 'message' end as kind,
               case when i % 10 in (0, 2) then 'request' when i % 10 in (1, 3) and w % 50 > 0 then 'reply' end as role
        from (select i, hash(i + {first}) % 1000000000000 as h from range({rows}) as t(i)))
"""

_ROWS = """
    select {begin} + i * {step}
             + case when kind = 'message' and role = 'reply' then (1000000 * exp(8 * ((w % 9973) / 9973.0)))::bigint else 0 end as ts,
           {first} + i as seq,
           kind,
           case when kind = 'snapshot' and i % 4 = 0 then 'rpc/cmd' || (i // 4 + 1)
                when kind = 'snapshot' then 'app' || (i % 40) || '/topic' || (i % 8) || '/'
                when kind in ('connect', 'disconnect', 'loss') then null
                when kind = 'denial' then '!/cred//' || (1000 + w % 7) || '//secret'
                when role = 'request' then 'rpc/cmd' || cmd
                when role = 'reply' then '!/conn/' || (w % 300) || '/ret'
                else 'app' || app || '/topic' || (floor(exp(ln(250) * u))::bigint % 8) || '/' || floor(exp(ln(250) * u))::bigint end as key,
           1 + actor + 40 * (w % 7) as conn,
           1000 + actor % 20 as uid,
           100 as gid,
           5000 + actor as pid,
           case when actor % 10 = 9 then null else 'app' || actor || '.service' end as unit,
           case when kind = 'message' then (v % 4)::integer end as recipients,
           case when kind = 'message' then (v % 50 = 0)::integer end as queued,
           case when kind = 'message' then (v = 7 and w % 10 = 0)::integer end as discarded,
           case when kind = 'message' then encode(rpad(md5(h::varchar), 64, md5(w::varchar))) end as payload,
           case when kind = 'message' then 64::integer end as payload_bytes,
           case when kind = 'message' and role is not null then ({first} + i - i % 2) end as call_id,
           case when kind = 'message' then role end as call_role,
           case when kind = 'message' and role = 'request' then 'cmd' || cmd end as call_cmd,
           case when kind = 'message' and role = 'request' then 2 end as call_exp,
           case when kind = 'message' and role = 'reply' then w % 100 = 3 end as call_failed,
           case when kind = 'denial' then 'EACCES' end as code,
           case when kind = 'denial' then 'not yours' end as reason,
           case when kind = 'denial' then 1 when kind = 'loss' then w % 9 + 1 end as lost,
           null::bigint as duration, null::bigint as twin, null::integer as attempt,
           case when kind = 'denial' then 'SUB' end as packet,
           null::bigint[] as missed,
           null::varchar as vouched,
           null::bigint as to_conn
    from ({records})
"""


def make_archive(root: Path, rows: int) -> None:
    """Write an archive of *rows* records to *root*."""
    (root / "index").mkdir(parents=True)
    most = min(SEGMENT_ROWS, -(-rows // LEAST_SEGMENTS))
    left, hour, first = rows, 0, 1
    while left:
        for host in HOSTS:
            count = min(most, left)
            left -= count
            if count:
                _write_hour(root, host, hour, first, count)
            first += count
        hour += 1


def make_part(whole: Path, part: Path, rows: int) -> int:
    """Make *part* an archive of the first segments of *whole*, about *rows* records; return how many they are. Files are shared."""
    taken = 0
    for entry in RecordReader(whole).entries():
        if taken >= rows:
            break
        target = part / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(whole / entry.path, target)
        write_entry(part, entry)
        taken += entry.rows
    return taken


def _write_hour(root: Path, host: str, hour: int, first: int, rows: int) -> None:
    """Write the record of one host's hour."""
    # A reply is up to three seconds behind its request: the last records leave room for it.
    step = (HOUR_NS - 10**10) // rows
    records = _RECORDS.format(subscriptions=SUBSCRIPTIONS, first=first, rows=rows)
    query = _ROWS.format(begin=BEGIN + hour * HOUR_NS, step=step, first=first, records=records)
    with duckdb.connect() as engine:
        table = engine.sql(query).to_arrow_table()
    write_segments(root, host, first, table.select(SCHEMA.names).cast(SCHEMA))
