"""Request handlers, by subject; the docstring of each says its API's versions and behaviour."""
