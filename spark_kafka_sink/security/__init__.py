"""How client and broker make sure of each other: SASL mechanisms, tokens, TLS contexts."""
