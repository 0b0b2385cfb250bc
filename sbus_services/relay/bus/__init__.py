"""The relay as a client of its host's bus. Spec: sbus-rpc(7) §9, sbus-relay(8)."""
