"""Routes about all processes of the group."""
