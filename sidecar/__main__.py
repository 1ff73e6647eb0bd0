"""`tickover` and `python -m sidecar`: the command line."""

from sidecar.cli.app import app


def main() -> None:
    """Run the command that the arguments name; ends the process with its status."""
    app(prog_name="tickover")


if __name__ == "__main__":
    main()
