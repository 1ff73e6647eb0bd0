"""What an interface promises, asked of each of its implementations."""
