"""HTTP between hosts: server, client, and authentication. Spec: sbus-relay(8)."""
