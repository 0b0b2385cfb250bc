"""The interfaces to systemd: notification, watchdog, journal, file descriptor store, control groups."""
