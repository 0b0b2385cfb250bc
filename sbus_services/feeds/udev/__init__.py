"""The udev feed: events and properties of this machine's devices on the bus. Spec: sbus-feed(8)."""
