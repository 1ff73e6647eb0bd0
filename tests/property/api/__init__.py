"""Laws of `api`."""
