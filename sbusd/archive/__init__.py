"""Files on disk: the record of the traffic, and the tables that the pipeline computes from it."""
