"""Checks the kernel limits: the largest packet of a client, and the number of connections."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

from sbusd.ctl.checks import CheckResult, Finding
from sbusd.protocol.limits import MAX_PACKET_BYTES

_WMEM_MAX = Path("/proc/sys/net/core/wmem_max")

FEW_DESCRIPTORS = 4_096
"""A bus with a lower limit refuses clients before the machine is busy; the units set 16,384."""


def check_packet(size: int = MAX_PACKET_BYTES) -> Finding:
    """Return whether a client can send a packet of *size* bytes, by trying it on a pair of sockets."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        left.setblocking(False)
        # The kernel limits the value to net.core.wmem_max, and doubles it: socket(7).
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        try:
            left.send(bytes(size))
        except OSError as error:
            reason = f"clients cannot send packets of the maximum size, {size} bytes: {error.strerror}; net.core.wmem_max is {_wmem_max()}"
            return Finding("packets", CheckResult.WARN, reason, f"sysctl net.core.wmem_max={size}, and add the setting to /etc/sysctl.d")
    return Finding("packets", CheckResult.OK, f"clients can send packets of the maximum size, {size} bytes")


def check_descriptors(pid: int | None, connections: int | None) -> Finding:
    """Return whether process *pid*, the bus, can have enough descriptors for its *connections*; both can be None if unknown."""
    if pid is None:
        return Finding("descriptors", CheckResult.SKIP, "the process of the bus is not known")
    try:
        limit, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except (PermissionError, ProcessLookupError):
        return Finding("descriptors", CheckResult.SKIP, f"this user may not read the limits of the bus (PID {pid})")
    return judge_descriptors(limit, connections)


def judge_descriptors(limit: int, connections: int | None) -> Finding:
    """Return the finding for a *limit* of open descriptors of a bus with *connections*."""
    advice = "raise LimitNOFILE= of sbus.service, or ulimit -n if the bus is started manually"
    if limit == resource.RLIM_INFINITY:
        return Finding("descriptors", CheckResult.OK, "the bus may open any number of descriptors")
    if connections is not None and connections > limit * 9 // 10:
        return Finding("descriptors", CheckResult.FAIL, f"the bus has {connections} connections and may open {limit} descriptors", advice)
    if limit < FEW_DESCRIPTORS:
        return Finding("descriptors", CheckResult.WARN, f"the bus may open only {limit} descriptors, and needs one per connection", advice)
    return Finding("descriptors", CheckResult.OK, f"the bus may open {limit} descriptors")


def _wmem_max() -> str:
    """Return net.core.wmem_max as text."""
    try:
        return _WMEM_MAX.read_text("ascii").strip()
    except OSError:
        return "not readable"
