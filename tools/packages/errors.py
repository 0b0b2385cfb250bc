"""The error of a failed package build."""

from __future__ import annotations


class PackagingError(Exception):
    """A package, or the root in which it is built, cannot be created. The text is one line: what failed, where, and what to do."""
