"""What a read is told: its options, which partitions it covers, and where it starts and ends."""
