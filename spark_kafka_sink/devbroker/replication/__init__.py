"""The replicas of each broker: how a leader knows its followers, and how they follow it.

These are cores without IO. Handlers can serve them (`cluster.replicated_topics`), but the embedded
broker does not start such brokers yet: all its brokers share one log for each partition.
"""
