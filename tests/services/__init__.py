"""Real servers for tests: started once for a whole run, ended with it."""
