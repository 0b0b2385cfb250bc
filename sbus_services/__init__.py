"""The optional services around the bus: each is a client of it, with its own unit, user, configuration and manual page."""
