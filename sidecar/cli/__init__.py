"""The command line: data on stdout, words on stderr; 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict."""
