"""Renaming a group: commits, ledger, topics and Redis keys go over to another name, and nothing is replayed."""
