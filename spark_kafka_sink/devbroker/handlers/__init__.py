"""One module per API; each opens with the versions it serves and how it behaves."""
