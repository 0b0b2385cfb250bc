"""Stored messages and jobs of sbus-store(8), without I/O: requests, responses, and errors. ``sync`` and ``asyncio`` perform the calls."""
