"""The look-up of partitions and offsets."""
