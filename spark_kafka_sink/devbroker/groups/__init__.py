"""The coordinator of consumer groups: members, rebalances and committed offsets."""
