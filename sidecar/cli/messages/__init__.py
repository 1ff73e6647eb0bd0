"""Messages on the command line: sent, looked up, changed."""
