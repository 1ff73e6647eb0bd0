"""The consumer: what it is subscribed to, metadata, fetching, offsets by time."""
