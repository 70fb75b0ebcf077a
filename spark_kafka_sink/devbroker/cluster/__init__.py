"""Topics, partitions and leaders of all the brokers of a cluster."""
