"""The command line: data on stdout, words on stderr; 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict.

A module for each group of commands. `config`, `jobs`, `named_resources`, `output` and `rest_client` have what several
groups share, and no commands of their own.
"""
