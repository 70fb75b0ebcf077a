"""Authentication of clients and brokers: TLS contexts, SASL, tickets and tokens."""
