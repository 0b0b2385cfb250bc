"""The report: the tables of the pipeline as one HTML page with charts, which needs no network. Spec: sbusctl(1)."""
