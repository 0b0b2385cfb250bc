"""The WebSocket gateway for browsers. Spec: sbus-web(8)."""
