"""The netlink feed: links, addresses, routes and neighbours of this machine on the bus. Spec: sbus-feed(8)."""
