"""Who a client is, and who a broker is: TLS contexts, SASL, tickets and tokens."""
