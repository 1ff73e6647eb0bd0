"""Laws of `policies`."""
