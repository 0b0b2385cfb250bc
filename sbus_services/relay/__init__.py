"""The Reliable Message Bus: requests between hosts, over Redis on each host and HTTP between hosts. Spec: sbus-relay(8)."""
