"""Delayed operations, whatever they wait for: conditions, watchers by key, the purgatory."""
