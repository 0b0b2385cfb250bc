"""What can go wrong while packages are built, as one line of words."""

from __future__ import annotations


class PackagingError(Exception):
    """A package, or the root it is built in, cannot be made. One line that names what, where, and what to do."""
