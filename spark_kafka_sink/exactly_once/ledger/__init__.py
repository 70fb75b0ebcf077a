"""The ledger topic: its entries, how they are read, and who may write them."""
