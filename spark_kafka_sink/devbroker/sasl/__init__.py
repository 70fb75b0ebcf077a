"""The broker's side of SASL: the mechanisms, and the authentication of a connection."""
