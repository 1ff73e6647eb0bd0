"""A replicated partition without its bytes: roles, in-sync replicas, watermarks, epochs, transactions."""
