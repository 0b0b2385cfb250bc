"""The interfaces to systemd: notification, watchdog, journal, file descriptor store, socket activation, control groups."""
