"""The wire protocol, without I/O: sbus-protocol(7) as code. Both ends of a connection use it, and tell each other the version."""

__version__ = "0.1.0"
