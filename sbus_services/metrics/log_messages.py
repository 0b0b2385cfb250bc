"""The log messages of sbus-metrics. Spec: sbus-metrics(8), "LOG MESSAGES".

Any user can cause most of them. `sbus_programs.systemd.log_records` logs repeated ones of one cause once per interval.
"""

from __future__ import annotations

from sbus_programs.systemd.log_records import LogMessage, Priority

STARTED = LogMessage("d8df3083a18a498791e39b52c94e74c8", Priority.INFO, "started", "serving metrics of {bus} on {address}")
STOPPED = LogMessage("981a8fee16154e618d6074da61504c81", Priority.INFO, "stopped", "stopped serving metrics; scrapes: {scrapes}")
NO_METRICS = LogMessage(
    "d8ba1cbb2a674ce7bbdebedf06c4b652", Priority.WARNING, "no-metrics", "cannot read the metrics of the bus: {reason}; times: {count}"
)
NO_TAP = LogMessage(
    "a523acffe8b64e14a50424fa0a7f9014", Priority.WARNING, "no-tap", "cannot count messages of {prefix}: {reason}; times: {count}"
)
DENIED = LogMessage("d6407c9faf7b4559b38e3e69793fe9e5", Priority.NOTICE, "denied", "refused the metrics to user {user}; times: {count}")
FULL = LogMessage(
    "6a4387404c5d4e4fba921c0fd898bcb8", Priority.WARNING, "full", "closed a connection of user {user}: too many are open; times: {count}"
)
PAUSED = LogMessage("7c84b2adb2974451a3945240642b8375", Priority.WARNING, "paused", "{reason}; times: {count}")
REJECTED = LogMessage("4040e3eb8dac4d49a382b364e0979e23", Priority.NOTICE, "rejected", "rejected a request: {reason}; times: {count}")
FAULT = LogMessage("43070127b2034412b7a2ed631204572a", Priority.ERR, "fault", "internal error: {reason}; times: {count}")

MESSAGES = tuple(value for value in vars().values() if isinstance(value, LogMessage))
"""Every message."""
