"""One module per API; each declares its request and response."""
