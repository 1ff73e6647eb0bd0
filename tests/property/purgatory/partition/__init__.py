"""Laws of `purgatory/partition`."""
