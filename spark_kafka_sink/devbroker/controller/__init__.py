"""The controller of a cluster that replicates: brokers, topics, leaders and in-sync replicas."""
