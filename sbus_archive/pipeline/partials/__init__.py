"""Sums rows of segments with Arrow where they are read, so that Spark gets far fewer rows than the record has.

For each table a function takes a portion of an hour of a host, and yields partial rows: adding up those of all portions gives the table. If
the portion is the whole hour of the host, as it nearly always is, the rows of the table are computed here; Spark only distributes the work,
and sorts and writes the rows.
"""
