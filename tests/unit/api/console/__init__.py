"""Parts of the console without a browser."""
