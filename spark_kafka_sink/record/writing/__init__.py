"""From Arrow to the columns that the kernels write, each checked before it is followed."""
