"""With processes, helm, the documentation site or sockets of this machine, and no service."""
