"""The broker's side of SASL: mechanisms, and the order in which a connection goes through them."""
