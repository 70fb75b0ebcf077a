"""The ledger topic: what stands in it, how it is read, and who may write to it."""
