"""Routes about the sidecar itself: who asks, how it is set, what is wrong around it."""
