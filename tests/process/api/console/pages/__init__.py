"""The console in a browser, over an API of fakes."""
