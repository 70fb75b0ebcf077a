"""The producer: accumulator, buffer pool, partitioners, sender and idempotence."""
