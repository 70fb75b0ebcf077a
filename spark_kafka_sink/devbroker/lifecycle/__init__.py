"""One broker of a cluster that replicates: its cores, and how they work together."""
