"""Every setting, once: names, defaults, limits, and where values come from."""
