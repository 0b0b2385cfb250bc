"""The Reliable Message Bus: calls that leave the host, by Redis queues here and HTTP between hosts. Spec: sbus-relay(8)."""
