"""Pages of the documentation that are made from the code, and the site they are on: `python -m tests.pages`."""
