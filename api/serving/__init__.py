"""The HTTP server: listening sockets, connections and their limits, certificates."""
