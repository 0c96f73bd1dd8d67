"""Which products a user takes next."""
