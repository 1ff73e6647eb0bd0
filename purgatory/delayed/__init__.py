"""Requests that wait: produce, fetch, delete records, and those of consumer groups."""
