"""The settings of the group consumer."""
