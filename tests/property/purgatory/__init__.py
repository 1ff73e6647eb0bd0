"""Laws of `purgatory`."""
