"""The relay's queues and state in Redis. Spec: sbus-relay(8)."""
