"""Tests that use a Spark of their own process: one for all of them, because a start and the first queries cost 30 seconds of a processor.

It is a package, so that the fixture of scope "package" ends with the last of them.
"""
