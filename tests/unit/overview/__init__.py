"""The overview of a group, module by module."""
