"""What the bus records, each with an id of its own by which the journal and its catalog know it. Spec: sbusd(8), systemd.journal-fields(7).

An id was made once, at random, and never changes; the words may. ``{names}`` in the words are facts that
:meth:`sbusd.broker.log.Journal.record` is given, which also become fields of the record, ``SBUS_<NAME>``.
"""

from __future__ import annotations

from sbusd.systemd.log_message import LogMessage, Priority

STARTED = LogMessage("3ee6e31eb91f4cacacd8a352d87d2d88", Priority.INFO, "started", "the bus is ready at {address}, version {version}")
STOPPED = LogMessage("d13ce47e04754db2b14253005347267b", Priority.INFO, "stopped", "the bus has stopped: {reason}")
CLIENT_REFUSED = LogMessage(
    "bd33310222a0494e8ee20be8a6ea6397", Priority.NOTICE, "client-refused", "a connection was refused: this user may not use the bus"
)
CREDENTIALS_UNKNOWN = LogMessage(
    "1c4bcf6a23ac4f618aaaa9f9c2082ec6", Priority.ERR, "credentials-unknown", "a connection was refused: {reason}"
)
SECRET_REFUSED = LogMessage(
    "05b0dbafb2f4458cb04434240b88d62d", Priority.NOTICE, "secret-refused", "a subscription to a secret key was refused: {reason}"
)
RESERVED_KEY_REFUSED = LogMessage(
    "c85690b70aa5420687d23f4e9c1d922a", Priority.NOTICE, "reserved-key-refused", "a reserved key was refused in {packet}, times: {count}"
)
TOO_LONG_REFUSED = LogMessage(
    "5d7192296ea54bd6afc0d06b0333c74a", Priority.NOTICE, "too-long-refused", "{packet} refused, times: {count}: {reason}"
)
MALFORMED_PACKET = LogMessage(
    "d3168e60c85f453f9074341cf36c6357", Priority.NOTICE, "malformed-packet", "a malformed packet, so the client was disconnected: {reason}"
)
PACKETS_LOST = LogMessage(
    "42f13a4bdc354a9fb0e263134c20ef30",
    Priority.WARNING,
    "packets-lost",
    "a client reads too slowly; packets for it that were discarded: {count}",
)
CLIENT_MISBEHAVED = LogMessage(
    "15f81aff2eb145a98210f5615e5202bb",
    Priority.WARNING,
    "client-misbehaved",
    "a client was disconnected for what it does not read: {reason}",
)
ACCEPT_FAILED = LogMessage(
    "1d8e8c62adb34b549f1e0aedce87217b",
    Priority.ERR,
    "accept-failed",
    "a connection could not be accepted: {reason}; let the bus have more descriptors (LimitNOFILE=)",
)
POLICY_REFUSED = LogMessage(
    "eaa925ed80804842afcc645bf9ed9dc2", Priority.NOTICE, "policy-refused", "{packet} refused by {rule}, times: {count}"
)
SUBSCRIPTIONS_REVOKED = LogMessage(
    "e596333428a44a08843179c7e9137709",
    Priority.NOTICE,
    "subscriptions-revoked",
    "subscriptions that the rules do not allow any more have ended: {count}, the first for {rule}",
)
TAP_OPENED = LogMessage(
    "4263cd3ab4d64207ad1d429e3ac5adc6", Priority.NOTICE, "tap-opened", "a client is told of all traffic from now on that its tap takes"
)
TAP_REFUSED = LogMessage(
    "faae65d3157b4945997b052b7b1b9be4", Priority.NOTICE, "tap-refused", "a tap was refused: this user may not be told of all traffic"
)
PROTECTED_USER_ENDED = LogMessage(
    "65a487dd126544d2a3962ed5af32c009",
    Priority.CRIT,
    "protected-user-ended",
    "the bus has ended a connection of a protected user: {reason}",
)
RELOADED = LogMessage("de337d8bb9004653b866d3eb663dc1fe", Priority.INFO, "reloaded", "the configuration was read again and holds: {files}")
RELOAD_FAILED = LogMessage(
    "6952b7fae8114bebae845b94c5d8bfa7",
    Priority.ERR,
    "reload-failed",
    "the configuration was read again and is wrong, so the old one still holds: {reason}",
)
RESTART_NEEDED = LogMessage(
    "33d746fbd2b64c45b4ce5500618400da",
    Priority.WARNING,
    "restart-needed",
    "changed in the configuration, and in force only when the bus is started again: {keys}",
)
QUOTA_REFUSED = LogMessage(
    "a4f27f03c99c47a6824bdd67ab0d11b6",
    Priority.WARNING,
    "quota-refused",
    "a user has used up a quota, so it was refused, times: {count}: {reason}; most have: {holders}",
)
PROCESS_ENDED = LogMessage(
    "68856e5b4edd41348853960d6d29e2f4",
    Priority.NOTICE,
    "process-ended",
    "a process has ended whose secret key somebody else still listened to with its socket; the connection was ended",
)
PROCESSES_UNWATCHED = LogMessage(
    "38e59a0bd1c64be9a90ba0e64f9dbfee",
    Priority.WARNING,
    "processes-unwatched",
    "this kernel does not tell when the process of a client ends (Linux 6.5 does): secret keys that name a process outlive it",
)
HANDED_OVER = LogMessage(
    "316b26751dbb4087b31b5df849b354dd",
    Priority.INFO,
    "handed-over",
    "the bus hands over: connections {connections}, packets that wait {packets}",
)
RESTORED = LogMessage(
    "0771cfdc6d624fdf95330788bea7f54a",
    Priority.INFO,
    "restored",
    "the bus goes on {manner}: connections {connections}, those that could not be kept {gone}",
)
HANDOVER_REFUSED = LogMessage(
    "785689c8696e4ee585edfef559c77648",
    Priority.ERR,
    "handover-refused",
    "the state of the bus before this one cannot be used, so its connections were closed ({closed}): {reason}",
)
HANDOVER_FAILED = LogMessage(
    "0234a98e26d84bb7916afd8b7218cca9",
    Priority.ERR,
    "handover-failed",
    "the bus was told to start anew in place and cannot, so it goes on as it is: {reason}",
)
STATE_UNKEPT = LogMessage(
    "733ff20e968345179797abdaf8729182",
    Priority.ERR,
    "state-unkept",
    "what the bus knows could not be written down, so connections would not outlive it now: {reason}",
)
CONNECTION_UNPARKED = LogMessage(
    "b6db5ca0978f4b3097d849cf746e0f88",
    Priority.WARNING,
    "connection-unparked",
    "a connection could not be put aside, so it would not outlive the bus; let the bus have more descriptors (LimitNOFILE=)",
)
CONFIGURATION_ERROR = LogMessage("8345b5252cf84bbc82de4656f791ad96", Priority.ERR, "configuration-error", "{reason}")
CONFIGURATION_FAULT = LogMessage(
    "1e6a4300d05b4ba8a1860b208c828e50", Priority.ERR, "configuration-fault", "a part of the configuration cannot be used: {reason}"
)
INTERNAL_ERROR = LogMessage(
    "8cab299d59544cd6b3dc203628c0e134",
    Priority.CRIT,
    "internal-error",
    "an error in the bus itself, in {where}: {reason}; please report it",
)
SERVICE_MANAGER_DEAF = LogMessage(
    "7e8796bed2e147ff96d2d15b51c2769a",
    Priority.WARNING,
    "service-manager-deaf",
    "systemd did not take a sign of life of the bus, which is given again in a moment; without any the watchdog ends the bus",
)
CLIENT_CONNECTED = LogMessage("92a622edd65547a6aa6cf665ed58abd1", Priority.DEBUG, "client-connected", "a client has connected")
CLIENT_DISCONNECTED = LogMessage("37b2e86566f341f2b394371ecaf6baee", Priority.DEBUG, "client-disconnected", "a client has gone: {reason}")
SUPPRESSED = LogMessage("f8c730d37c22450d91c169fc5dfd85c1", Priority.NOTICE, "suppressed", "{count} more like this from {whom}: {name}")
RECORDS_DROPPED = LogMessage(
    "4c3918ef0dd747e29bc08efbb76e2476", Priority.WARNING, "records-dropped", "records that could not be written, and are lost: {count}"
)

MESSAGES: tuple[LogMessage, ...] = tuple(value for value in globals().values() if isinstance(value, LogMessage))
"""Every message there is."""
