"""The wire protocol, without I/O: sbus-protocol(7) as code."""
