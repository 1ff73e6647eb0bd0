"""`tickover` and `python -m sidecar`: the command line."""

import sys


def main() -> None:
    """Run the command that the arguments name; ends the process with its status."""
    if sys.argv[1:2] == ["run"]:  # it lives for long: what only the others need stays out of its memory
        from sidecar.cli.run import app
    else:
        from sidecar.cli.app import app
    app(prog_name="tickover")


if __name__ == "__main__":
    main()
