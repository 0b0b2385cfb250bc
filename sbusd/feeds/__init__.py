"""Feeds: programs that put this machine's own events on the bus, as ordinary clients of it. See sbus-feed(8)."""
