"""Handlers of requests, a module for each family."""
