"""The log messages of the bus. Spec: sbusd(8), systemd.journal-fields(7).

The facts in a template are arguments of :meth:`sbusd.broker.log.BusLog.record`.
"""

from __future__ import annotations

from sbus_programs.systemd.log_records import LogMessage, Priority

STARTED = LogMessage("3ee6e31eb91f4cacacd8a352d87d2d88", Priority.INFO, "started", "ready at {address}, version {version}")
STOPPED = LogMessage("d13ce47e04754db2b14253005347267b", Priority.INFO, "stopped", "stopped: {reason}")
CLIENT_REFUSED = LogMessage(
    "bd33310222a0494e8ee20be8a6ea6397", Priority.NOTICE, "client-refused", "rejected connection: the user is not admitted to this bus"
)
CREDENTIALS_UNKNOWN = LogMessage(
    "1c4bcf6a23ac4f618aaaa9f9c2082ec6", Priority.ERR, "credentials-unknown", "rejected connection, peer credentials unknown: {reason}"
)
SECRET_REFUSED = LogMessage(
    "05b0dbafb2f4458cb04434240b88d62d", Priority.NOTICE, "secret-refused", "rejected subscription to a private key: {reason}"
)
RESERVED_KEY_REFUSED = LogMessage(
    "c85690b70aa5420687d23f4e9c1d922a", Priority.NOTICE, "reserved-key-refused", "rejected {count} {packet} packets with a reserved key"
)
TOO_LONG_REFUSED = LogMessage(
    "5d7192296ea54bd6afc0d06b0333c74a", Priority.NOTICE, "too-long-refused", "rejected {count} {packet} packets that are too long: {reason}"
)
MALFORMED_PACKET = LogMessage(
    "d3168e60c85f453f9074341cf36c6357", Priority.NOTICE, "malformed-packet", "disconnected client after a malformed packet: {reason}"
)
PACKETS_LOST = LogMessage(
    "42f13a4bdc354a9fb0e263134c20ef30",
    Priority.WARNING,
    "packets-lost",
    "discarded {count} packets for a client that reads too slowly",
)
CLIENT_MISBEHAVED = LogMessage(
    "15f81aff2eb145a98210f5615e5202bb",
    Priority.WARNING,
    "client-misbehaved",
    "disconnected client: {reason}",
)
ACCEPT_FAILED = LogMessage(
    "1d8e8c62adb34b549f1e0aedce87217b",
    Priority.ERR,
    "accept-failed",
    "failed to accept a connection: {reason}; if descriptors are short, raise LimitNOFILE=",
)
POLICY_REFUSED = LogMessage(
    "eaa925ed80804842afcc645bf9ed9dc2", Priority.NOTICE, "policy-refused", "rejected {count} {packet} packets by {rule}"
)
SUBSCRIPTIONS_REVOKED = LogMessage(
    "e596333428a44a08843179c7e9137709",
    Priority.NOTICE,
    "subscriptions-revoked",
    "ended {count} subscriptions that the rules no longer allow, the first by {rule}",
)
TAP_OPENED = LogMessage(
    "4263cd3ab4d64207ad1d429e3ac5adc6", Priority.NOTICE, "tap-opened", "opened tap: the client receives a copy of all matching traffic"
)
TAP_REFUSED = LogMessage(
    "faae65d3157b4945997b052b7b1b9be4", Priority.NOTICE, "tap-refused", "rejected tap: the user does not have the tap right"
)
VOUCH_REFUSED = LogMessage(
    "0bb6934038c64d80bd866c097f5d7df5",
    Priority.NOTICE,
    "vouch-refused",
    "rejected a message in the name of others: the user does not have the vouch right",
)
DELIVER_REFUSED = LogMessage(
    "b39d077416d14888bdf1aaf7f7b3a673",
    Priority.NOTICE,
    "deliver-refused",
    "rejected a message for one connection alone: the user does not have the deliver right",
)
PROTECTED_USER_ENDED = LogMessage(
    "65a487dd126544d2a3962ed5af32c009",
    Priority.CRIT,
    "protected-user-ended",
    "disconnected a client of a protected user: {reason}",
)
RELOADED = LogMessage("de337d8bb9004653b866d3eb663dc1fe", Priority.INFO, "reloaded", "reloaded configuration: {files}")
RELOAD_FAILED = LogMessage(
    "6952b7fae8114bebae845b94c5d8bfa7",
    Priority.ERR,
    "reload-failed",
    "failed to reload configuration, the previous one still applies: {reason}",
)
RESTART_NEEDED = LogMessage(
    "33d746fbd2b64c45b4ce5500618400da",
    Priority.WARNING,
    "restart-needed",
    "restart required for changed configuration keys: {keys}",
)
QUOTA_REFUSED = LogMessage(
    "a4f27f03c99c47a6824bdd67ab0d11b6",
    Priority.WARNING,
    "quota-refused",
    "rejected {count} requests of a user that reached a quota: {reason}; largest holders: {holders}",
)
PROCESS_ENDED = LogMessage(
    "68856e5b4edd41348853960d6d29e2f4",
    Priority.NOTICE,
    "process-ended",
    "disconnected client: the process that its private key names has ended, but another process holds the socket",
)
PROCESSES_UNWATCHED = LogMessage(
    "38e59a0bd1c64be9a90ba0e64f9dbfee",
    Priority.WARNING,
    "processes-unwatched",
    "kernel does not report the end of client processes (Linux 6.5 does): subscriptions to private keys can outlive the process",
)
UNITS_UNREADABLE = LogMessage(
    "f7e1abc2ae284caeab93c526dda203f9",
    Priority.WARNING,
    "units-unreadable",
    "cannot read the units of clients, so rules that name units treat them as unknown: {reason}",
)
HANDED_OVER = LogMessage(
    "316b26751dbb4087b31b5df849b354dd",
    Priority.INFO,
    "handed-over",
    "handed over {connections} connections and {packets} pending packets",
)
RESTORED = LogMessage(
    "0771cfdc6d624fdf95330788bea7f54a",
    Priority.INFO,
    "restored",
    "restored {connections} connections {manner}; connections lost: {gone}",
)
HANDOVER_REFUSED = LogMessage(
    "785689c8696e4ee585edfef559c77648",
    Priority.ERR,
    "handover-refused",
    "rejected the state of the previous process and closed {closed} connections: {reason}",
)
HANDOVER_FAILED = LogMessage(
    "0234a98e26d84bb7916afd8b7218cca9",
    Priority.ERR,
    "handover-failed",
    "failed to restart in place, the bus continues unchanged: {reason}",
)
STATE_NOT_STORED = LogMessage(
    "733ff20e968345179797abdaf8729182",
    Priority.ERR,
    "state-not-stored",
    "failed to write the state, a crash would close all connections: {reason}",
)
CONNECTION_NOT_STORED = LogMessage(
    "b6db5ca0978f4b3097d849cf746e0f88",
    Priority.WARNING,
    "connection-not-stored",
    "failed to store a connection, a restart would close it; raise LimitNOFILE= of all buses of this user",
)
CONFIGURATION_ERROR = LogMessage("8345b5252cf84bbc82de4656f791ad96", Priority.ERR, "configuration-error", "{reason}")
CONFIGURATION_FAULT = LogMessage("1e6a4300d05b4ba8a1860b208c828e50", Priority.ERR, "configuration-fault", "configuration fault: {reason}")
INTERNAL_ERROR = LogMessage(
    "8cab299d59544cd6b3dc203628c0e134",
    Priority.CRIT,
    "internal-error",
    "internal error in {where}: {reason}; please report it",
)
SERVICE_MANAGER_UNREACHABLE = LogMessage(
    "7e8796bed2e147ff96d2d15b51c2769a",
    Priority.WARNING,
    "service-manager-unreachable",
    "failed to send a notification to systemd",
)
CLIENT_CONNECTED = LogMessage("92a622edd65547a6aa6cf665ed58abd1", Priority.DEBUG, "client-connected", "client connected")
CLIENT_DISCONNECTED = LogMessage("37b2e86566f341f2b394371ecaf6baee", Priority.DEBUG, "client-disconnected", "client disconnected: {reason}")
SUPPRESSED = LogMessage(
    "f8c730d37c22450d91c169fc5dfd85c1", Priority.NOTICE, "suppressed", "suppressed {count} records of type {name} from {whom}"
)
RECORDS_DROPPED = LogMessage(
    "4c3918ef0dd747e29bc08efbb76e2476", Priority.WARNING, "records-dropped", "lost {count} records that could not be written"
)

MESSAGES: tuple[LogMessage, ...] = tuple(value for value in globals().values() if isinstance(value, LogMessage))
"""Every message."""
