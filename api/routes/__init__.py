"""Routes of the REST API, a module for each kind of resource.

Modules `jobs`, `named_resources` and `timeline` have what several kinds share, and no routes of their own.
"""
