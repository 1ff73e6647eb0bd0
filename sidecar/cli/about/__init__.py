"""Commands about a sidecar itself: who asks, who did what, what was set aside."""
