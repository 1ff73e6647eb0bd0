"""The latency laboratory: what acks, replicas, linger and batch size cost, and where the time goes."""
