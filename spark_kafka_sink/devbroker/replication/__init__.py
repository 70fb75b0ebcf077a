"""The replicas of each broker: how a leader knows its followers, and how they follow it.

These are cores without IO. The embedded broker does not use them yet: all its brokers share one log
for each partition.
"""
