"""Entry point for `python -m pipeline` and spark-submit; `tickover pipeline` is the same."""

import sys

from pipeline.cli import app
from pipeline.errors import PipelineError
from sidecar.model.foreign_text import LINES, visible


def main() -> None:
    """Run one job; an expected failure is one line on stderr and status 1."""
    try:
        app(prog_name="tickover pipeline")
    except PipelineError as error:
        print(visible(f"tickover pipeline: {error}", LINES), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
