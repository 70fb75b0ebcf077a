"""The settings of the admin client."""
