"""Which class a user belongs to, read from its vector."""
