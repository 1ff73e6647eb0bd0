"""Transactions: coordinator, markers, verification, producer ids."""
