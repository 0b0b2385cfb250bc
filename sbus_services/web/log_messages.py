"""The log messages of the WebSocket gateway. Spec: sbus-web(8), "LOG MESSAGES"."""

from __future__ import annotations

from sbus_programs.systemd.log_records import LogMessage, Priority

STARTED = LogMessage("78b8f01a93a6451b8eec96313d52399f", Priority.INFO, "started", "serving browsers on {address}, for the bus {bus}")
STOPPED = LogMessage("5255b50736624d3687ce978f3aba77de", Priority.INFO, "stopped", "stopped serving browsers")
LOGGED_IN = LogMessage("aa5d6555f6774fb198a417fc5a315260", Priority.NOTICE, "logged-in", "a browser has used the link; logins: {logins}")
WRONG_TOKEN = LogMessage(
    "efccda5c1e564915996a1c8ed58e4b53", Priority.WARNING, "wrong-token", "rejected a link with a wrong token; times: {count}"
)
OTHER_USER = LogMessage(
    "15b083402feb49c58256b7317632f285", Priority.WARNING, "other-user", "closed a connection of user {user}; times: {count}"
)
REJECTED = LogMessage("a588c8c7f2184e3a8b2ad49ac8720160", Priority.WARNING, "rejected", "rejected a request: {reason}; times: {count}")
FULL = LogMessage("58163544f6ae4d82ba89afaeeff7e3a0", Priority.WARNING, "full", "{reason}; times: {count}")
NO_BUS = LogMessage("f9902dd701e54e1db6d961e7d9b0ec5b", Priority.WARNING, "no-bus", "no session: {reason}; times: {count}")
SESSION_ENDED = LogMessage("744ff3ea40f140f69953a50e35d8e2ae", Priority.INFO, "session-ended", "ended a session: {reason}; times: {count}")
FAULT = LogMessage("9a1668cda90a4928ba65415cfaba7763", Priority.ERR, "fault", "internal error: {reason}; times: {count}")

MESSAGES = tuple(value for value in vars().values() if isinstance(value, LogMessage))
"""Every message."""
