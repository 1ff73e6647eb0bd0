"""Unit tests of `purgatory/replica_manager`."""
