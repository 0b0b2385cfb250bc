"""The journal feed: journal entries of services and the kernel on the bus. Spec: sbus-feed(8), journal."""
