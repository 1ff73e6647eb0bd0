"""The engine's side of the overflow: promoting, applying, noticing a loss, rebuilding."""
