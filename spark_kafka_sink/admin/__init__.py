"""Questions about a cluster that need no producer: topics, partitions, rights."""
