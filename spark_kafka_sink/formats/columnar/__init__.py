"""What formats share: columns of Arrow that are filled and read by compiled loops."""
