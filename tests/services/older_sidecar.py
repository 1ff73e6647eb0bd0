"""The command as it was before schema 2 of policies: `python -m tests.services.older_sidecar run`."""

from policies.topic import log
from sidecar.__main__ import main

if __name__ == "__main__":
    log.SCHEMA = 1  # type: ignore[misc]
    main()
