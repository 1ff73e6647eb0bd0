"""The sidecar: the engine that holds and re-emits records, and the process around it."""
