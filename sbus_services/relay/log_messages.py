"""The log messages of the relay. Spec: sbus-relay(8).

Remote hosts can cause some of these messages. `sbus_programs.systemd.log_records` logs repeated ones of one cause once per interval.
"""

from __future__ import annotations

from sbus_programs.systemd.log_records import LogMessage, Priority

STARTED = LogMessage(
    "573acebeaa324283a856fb8f1989b930",
    Priority.INFO,
    "started",
    "started relaying for host {twin}: Redis {redis}, listening on {listen}, {trust}",
)
STOPPED = LogMessage("4845387d0a1044908ae91756a7dad1d3", Priority.INFO, "stopped", "stopped relaying for host {twin}")
UNAUTHENTICATED = LogMessage(
    "c4d92f07dd5d4b9b99c8865971d0cb30",
    Priority.WARNING,
    "unauthenticated",
    "remote hosts are not authenticated: serving this host only, on {listen}; configure [tls] or key_file in relay.toml",
)
REDIS_UNAVAILABLE = LogMessage(
    "0152ced22e6f4078b0fd73f8ea776917", Priority.ERR, "redis-unavailable", "{reason}; retrying, no message is lost"
)
REDIS_AVAILABLE = LogMessage(
    "29943bdda9314f00ac3975c927a9b69c", Priority.NOTICE, "redis-available", "reconnected to Redis after {seconds} s"
)
NOT_DURABLE = LogMessage(
    "f1c80a0e28764c98a10c3a6391d575b6",
    Priority.WARNING,
    "not-durable",
    "a crash of Redis {redis} can lose confirmed messages: {reason}",
)
RECOVERED = LogMessage(
    "03e5ad882385402cba1f7112b6a34db6",
    Priority.NOTICE,
    "recovered",
    "recovered {messages} messages held by a relay whose lease expired",
)
BUS_JOINED = LogMessage(
    "e7b0bae54918440c85b5cf9939faded6", Priority.INFO, "bus-joined", "joined bus {bus}: its users can call remote hosts"
)
BUS_UNAVAILABLE = LogMessage(
    "8e527ceaac144c0f90763779da9d571b",
    Priority.WARNING,
    "bus-unavailable",
    "bus {bus} unavailable: {reason}; until it is back, requests of remote hosts go to Redis only",
)
BUS_TAKEN = LogMessage(
    "c75cd3dcbecd4e6e9ccb003cfc17662f",
    Priority.NOTICE,
    "bus-taken",
    "another relay serves bus {bus}: connection {connection}, uid {uid}, pid {pid}; waiting until it disconnects",
)
BUS_REFUSAL = LogMessage(
    "24d751c00b314cd39d0161ff8611370c",
    Priority.WARNING,
    "bus-refusal",
    "bus {bus} refused {count} operations for remote hosts: {reason}",
)
PEER_UNREACHABLE = LogMessage(
    "1ebc25b2cd0146f6bde6a44e5ca4a238", Priority.NOTICE, "peer-unreachable", "remote host {twin} unreachable: {reason}; retrying"
)
PEER_REACHABLE = LogMessage("b5d7d2b6d02c4153812cca1d8605f6d1", Priority.NOTICE, "peer-reachable", "remote host {twin} reachable again")
PEER_REFUSED = LogMessage(
    "acdb1139d9464bfdbe924c9019b0c697", Priority.WARNING, "peer-refused", "message {uid} to host {twin} failed: {reason}"
)
AUTHENTICATION_FAILED = LogMessage(
    "527a744b71d546fe9e9296a70e50ae31",
    Priority.WARNING,
    "authentication-failed",
    "rejected {count} unauthenticated requests from {address}: {reason}",
)
REPLAYED = LogMessage(
    "0d98ee0218a6426ebcd27c024b2d8fdb",
    Priority.WARNING,
    "replayed",
    "rejected {count} replayed or wrongly timed messages of host {twin} from {address}: {reason}",
)
FORGED = LogMessage(
    "7344c10c61324fba9a908a9726009b78",
    Priority.WARNING,
    "forged",
    "rejected {count} forged or unexpected messages from {address}: {reason}",
)
REJECTED = LogMessage(
    "054b534e5fe84da78e676e3822237b6b",
    Priority.NOTICE,
    "rejected",
    "rejected {count} messages from {address}: {reason}",
)
TOO_LARGE = LogMessage(
    "3f69871f058b4ccdbe23441a087e5adc",
    Priority.WARNING,
    "too-large",
    "rejected {count} oversized messages from {address}: {reason}",
)
TOO_SLOW = LogMessage(
    "23554d03375a4b68a13e9c88788711fd",
    Priority.WARNING,
    "too-slow",
    "closed {count} slow connections from {address}: {reason}",
)
TOO_MANY = LogMessage(
    "639fcfc70c41421697a2bc0d99b7fa80", Priority.WARNING, "too-many", "closed {count} excess connections from {address}: {reason}"
)
PAUSED = LogMessage("cedaef6082d64eaf87e5f5601549e150", Priority.WARNING, "paused", "{reason}; occurrences: {count}")
MALFORMED = LogMessage(
    "31195c3da0714785af87434391a93e06",
    Priority.NOTICE,
    "malformed",
    "rejected {count} malformed messages in {queue}: {reason}",
)
FULL = LogMessage(
    "b6ec441e4d4943eeba49b8b42c44bc25",
    Priority.WARNING,
    "full",
    "queue {queue} full, did not accept {count} messages: {reason}",
)
UNDELIVERED = LogMessage(
    "d36d946210f040068319f8b9e6095224",
    Priority.WARNING,
    "undelivered",
    "dropped {count} responses for return queue {queue}: it is full, not a list or reserved",
)
RESOLVER_UNAVAILABLE = LogMessage(
    "892372e37ffb488b85ffc87b622e619c",
    Priority.WARNING,
    "resolver-unavailable",
    "address lookup failed {count} times: {reason}; using known addresses",
)
SHARED_NUMBER = LogMessage(
    "e7241d6bc05f4f6e9a83bd1790c2f548",
    Priority.WARNING,
    "shared-number",
    "messages of host {twin} come from {address} and from {other} in turn: two hosts may have one number; notices: {count}",
)
CREDENTIALS_READ = LogMessage(
    "2d61a7f0b95c4e38a0c4713d8f2be956", Priority.INFO, "credentials-read", "read changed certificates and keys: {files} files"
)
CREDENTIALS_KEPT = LogMessage(
    "96e3f08c4b1d4a72b57a0de4c8219f35",
    Priority.ERR,
    "credentials-kept",
    "cannot use changed certificates or keys: {reason}; the earlier ones are still used",
)
CERTIFICATE_ENDS = LogMessage(
    "51bc7e29d0f34816a3e80f47c6d95b2a", Priority.WARNING, "certificate-ends", "certificate {file} {reason}; renew it"
)
FAULT = LogMessage(
    "b94716575b6144b4a2c000d5c191dda2",
    Priority.ERR,
    "fault",
    "internal error in {where}: {reason}; occurrences: {count}",
)

MESSAGES = tuple(value for value in vars().values() if isinstance(value, LogMessage))
"""Every message."""
