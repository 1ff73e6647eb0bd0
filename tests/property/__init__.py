"""Laws, on generated input."""
