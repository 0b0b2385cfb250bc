"""The feed of sessions, seats and users of systemd-logind."""
