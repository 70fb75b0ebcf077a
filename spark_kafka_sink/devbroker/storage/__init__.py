"""How a partition's log lies in memory or on disk: segments, indexes, snapshots, checkpoints."""
