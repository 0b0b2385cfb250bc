"""The record of a bus on disk: schema, layout, index and segments. Spec: sbus-record(5).

The recorder writes it; the pipeline and ``sbusctl replay`` read it. Nothing here uses a bus.
"""
