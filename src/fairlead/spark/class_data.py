"""What the JVM learns of Spark's classes, kept for the next start."""

from __future__ import annotations

from fairlead.spark.java import Java


def class_data_options(java: Java) -> list[str]:
    return []
