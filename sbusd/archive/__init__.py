"""The files on disk: the record of the traffic, and the tables that the pipeline makes of it."""
