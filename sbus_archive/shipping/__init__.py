"""The program sbus-ship(8): copies the segments of this host to an object store."""
