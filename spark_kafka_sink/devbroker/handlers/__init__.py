"""Request handlers, one module per API; each opens with its versions and its behaviour."""
