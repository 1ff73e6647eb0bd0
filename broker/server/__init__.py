"""Sockets and processes: brokers started, served, stopped."""
