"""The log of a partition, in memory or on disk: validation, retention, compaction and look-ups."""
