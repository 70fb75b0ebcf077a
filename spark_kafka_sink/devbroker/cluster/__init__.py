"""Topics, partitions, leaders and coordinators, as each broker of a cluster knows them."""
