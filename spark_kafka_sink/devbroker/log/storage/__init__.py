"""A partition's log in memory or on disk: segments, indexes, snapshots, checkpoints."""
