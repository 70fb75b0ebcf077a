"""The log of a partition: validation, retention, compaction and look-ups."""
