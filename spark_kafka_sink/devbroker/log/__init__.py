"""The log of a partition: what it takes, keeps, compacts and finds again."""
