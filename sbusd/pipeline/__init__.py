"""The pipeline: what the recorder has written, made into tables by Spark. Spec: sbus-pipeline(8)."""
