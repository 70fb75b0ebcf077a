"""One broker, or several that replicate, without sockets or a clock."""
