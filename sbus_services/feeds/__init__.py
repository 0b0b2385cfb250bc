"""Feeds: programs that publish events of this machine on the bus, as ordinary clients. See sbus-feed(8)."""
