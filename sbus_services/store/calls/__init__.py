"""The calls ``store/…`` of sbus-store: their requests, limits and responses."""
