"""D-Bus for feeds: connections, coalesced changes, and the feed of signals."""
