"""Times of files of tests, so that the dearest of them begin first.

`python -m tests.costs REPORT...` reads pytest's JUnit reports, writes `tests/costs.json`, and prints the dearest files.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

COSTS: Final = Path(__file__).with_suffix(".json")
COST_MIN_S: Final = 10  # cheaper files fill what room is left, in any order
UNMEASURED_S: Final = 60  # a new file, or a cheap one: neither is to begin last
SHOWN: Final = 20


def read_costs() -> dict[str, int]:
    """Seconds by file (`tests/integration/...`), of files that took at least COST_MIN_S when they were measured."""
    costs: dict[str, int] = json.loads(COSTS.read_text(encoding="utf-8"))
    return costs


def costs_of(reports: Sequence[str]) -> dict[str, float]:
    """Seconds by file in JUnit reports, given as text; set-up is in the time of the test that it was for."""
    costs: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        for case in ElementTree.fromstring(report).iter("testcase"):
            costs[case.get("file", "")] += float(case.get("time", 0))
    return dict(costs)


def as_json(costs: Mapping[str, float]) -> str:
    """The dear ones of these, the dearest first, as the file has them."""
    dear = {file: round(seconds) for file, seconds in costs.items() if seconds >= COST_MIN_S}
    return json.dumps(dict(sorted(dear.items(), key=lambda one: (-one[1], one[0]))), indent=0) + "\n"


def main(paths: Sequence[str]) -> int:
    """Write the costs of these reports, and print the dearest files."""
    costs = costs_of([Path(path).read_text(encoding="utf-8") for path in paths])
    COSTS.write_text(as_json(costs), encoding="utf-8")
    for file, seconds in sorted(costs.items(), key=lambda one: -one[1])[:SHOWN]:
        sys.stdout.write(f"{seconds:6.0f} s  {file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
