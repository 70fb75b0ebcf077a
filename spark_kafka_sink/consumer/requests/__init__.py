"""The requests of a member of a group and of its positions, and their answers, without IO."""
