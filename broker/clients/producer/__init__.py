"""The producer: partitioners, the record accumulator, the sender, idempotence."""
