"""What sbusd uses of systemd: notification, the journal, the descriptor store, control groups."""
