"""Arrow tables as columns for the kernels, and records read as Arrow."""
