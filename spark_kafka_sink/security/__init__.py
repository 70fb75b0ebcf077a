"""How client and broker authenticate each other: SASL mechanisms, tokens, TLS contexts."""
