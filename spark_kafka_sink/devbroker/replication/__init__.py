"""The replicas of each broker: how a leader knows its followers, and how they follow it.

These are cores without IO; handlers serve them (`cluster.replicated_topics`).
"""
