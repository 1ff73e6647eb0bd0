"""A nemesis: brokers are killed, frozen, restarted and cut off while messages fall due, and each round is timed."""
