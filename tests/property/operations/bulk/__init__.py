"""Laws of `sidecar/operations/bulk`."""
