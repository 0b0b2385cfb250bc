"""What the wire means, pure and without I/O: sbus-protocol(7) as code."""
