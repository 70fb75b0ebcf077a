"""Consumer groups of the new protocol: their state, assignors, reconciliation and records."""
