"""The replicas of each broker: how a leader knows its followers, and how they follow it."""
