"""Request handlers, by subject; each opens with the versions of its API and its behaviour."""
