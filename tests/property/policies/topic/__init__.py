"""Laws of `policies/topic`."""
