"""Calls and services, without I/O. Spec: sbus-rpc(7)."""
