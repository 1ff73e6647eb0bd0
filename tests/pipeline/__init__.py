"""Tests of the jobs on Spark: they share one session, and those that need it a real Kafka."""
