"""Tests, on Spark, of `pipeline/reports`."""
