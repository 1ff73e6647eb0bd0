"""The live demo, and its judge."""
