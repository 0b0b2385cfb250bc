"""The service sbus-blob(8): large messages as sealed memfds, and descriptors between two named users."""
