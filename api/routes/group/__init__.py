"""Routes about the whole group of processes: its figures, its replicas, what is wrong."""
