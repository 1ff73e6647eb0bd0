"""A broker's replicas: what is refused, appended and read, and who is woken by what."""
