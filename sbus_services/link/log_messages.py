"""The log messages of the link. Spec: sbus-link(8), "LOG MESSAGES".

Other hosts can cause some of these messages. `sbus_programs.systemd.log_records` logs repeated ones of one cause once per interval.
"""

from __future__ import annotations

from sbus_programs.systemd.log_records import LogMessage, Priority

STARTED = LogMessage(
    "aedd97272be44e1f82f3bd943e47dd01", Priority.INFO, "started", "started linking host {host} in realm {realm} by {transport}"
)
STOPPED = LogMessage("9c472ee0df77436490847de3ce34f640", Priority.INFO, "stopped", "stopped linking host {host}")
HOST_UP = LogMessage("929cb4f4dfc54bf8aa6b540cca423ed2", Priority.INFO, "host-up", "host {host} is connected")
HOST_DOWN = LogMessage("54a8bd8893724749a3be76d2e440a3c7", Priority.NOTICE, "host-down", "host {host} sends no heartbeats")
NETWORK_UP = LogMessage("93ef62099f154802a0fdcd9318c0d355", Priority.INFO, "network-up", "network available: {server}")
NETWORK_DOWN = LogMessage(
    "b988625530f04c98b6a645f83ac2a8d4", Priority.WARNING, "network-down", "network unavailable: {reason}; messages wait in the spool"
)
LOST = LogMessage(
    "1a9ae2d480fd4b65afd1fd489dd8990e",
    Priority.WARNING,
    "lost",
    "lost {lost} messages of host {host}, which is reported to clients; reports: {count}",
)
PROBLEM = LogMessage("85f6d90c84414dd0a6a00c63dd56c13f", Priority.WARNING, "problem", "{reason}; occurrences: {count}")
FAULT = LogMessage("8cc3f2e29a5f4f509a0c278c73465432", Priority.ERR, "fault", "internal error: {reason}")

MESSAGES = tuple(value for value in vars().values() if isinstance(value, LogMessage))
"""Every message."""
