"""Compiled parts of the client."""
