"""The journal feed: what this machine's services and kernel say, on the bus. Spec: sbus-feed(8), journal."""
