"""From a due record to the producer: targets, rate limits, circuit breakers, redelivery."""
