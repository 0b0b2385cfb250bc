"""The record of calls between hosts: each attempt has the number of its call."""

from __future__ import annotations

from sbus import Twins
from sbus.protocol import controls
from sbus.protocol.packets import control_packet
from sbus_archive.record.calls import CallRecognizer
from sbus_archive.record.schema import Role, Row, RowKind
from sbus_archive.recorder.rows import PayloadPolicy, RowBuilder
from tests.support.bus_hosts import SECOND, MakeBusHosts, echo
from tests.support.service_processes import running_service


def test_an_attempt_belongs_to_its_call(bus_hosts: MakeBusHosts) -> None:
    a, b = bus_hosts()
    maker = RowBuilder(PayloadPolicy(), CallRecognizer("alpha", "boot"), unit_at=lambda *_: None)
    tap = a.daemon.client()
    tap.send(control_packet(controls.TAP_ON, b""))
    tap.barrier()
    with running_service(b.path, twins=Twins(), echo=echo), a.bus() as bus:
        bus.call("echo", b"x", twin=SECOND)
        bus.call("echo", b"y", twin=SECOND)
    a.host.receive(a.host.send("plain", 4711))
    rows: list[Row] = []
    while sum(row.kind == RowKind.RELAY for row in rows) < 3:
        row = maker.row(tap.receive())
        if row is not None and (row.kind == RowKind.RELAY or (row.key or "").startswith("relay/") or row.call_role == Role.REPLY):
            rows.append(row)
    asked = [row.call_id for row in rows if row.key == f"relay/{SECOND}/echo"]
    replied = [row.call_id for row in rows if row.call_role == Role.REPLY]
    tried = [(row.call_id, row.code, row.twin) for row in rows if row.kind == RowKind.RELAY]
    assert len(set(asked)) == 2
    assert asked == replied
    assert tried[:2] == [(call, "sent", SECOND) for call in asked]
    # A request from Redis has a number of its own.
    call, code, twin = tried[2]
    assert (code, twin) == ("unknown", 4711)
    assert call not in {*asked, None}
