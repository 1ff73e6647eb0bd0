"""Lists as CSV: what is missing is said, and no cell is a formula."""

import csv
import io

from api.console.csv_file import csv_response
from sidecar.lookup.query import row_of
from tests.unit.api.console.test_addresses import OPTIONS
from tests.unit.api_world import NOW_MS, REMINDERS, World, world
from tests.unit.change_world import LANES, held


def exported(api: World) -> tuple[str, int]:
    """Name and rows of the exported list."""
    answer = api.call("GET", "/ui/export/messages.csv")
    assert answer.status_code == 200
    name = answer.headers["content-disposition"].partition('filename="')[2].rstrip('"')
    return name, len(list(csv.reader(io.StringIO(answer.text)))) - 1


def test_a_file_that_lacks_rows_is_named_so() -> None:
    with world(console=OPTIONS) as api:
        api.add(REMINDERS)
        api.held.rows = [row_of(LANES[0], held(number, NOW_MS + 1, str(number)), "wheel") for number in range(700)]
        assert exported(api) == ("messages.csv", 700)
        api.held.missing = [LANES[1]]
        assert exported(api) == ("messages-not-all.csv", 700)


def test_no_cell_is_a_formula() -> None:
    row = {"id": "=1+1", "position": {"topic": "-topic", "partition": 1, "offset": 2}, "offset": -1}
    answer = csv_response("x", ["id", "position", "offset"], [row], is_whole=True)
    [_, cells] = csv.reader(io.StringIO(bytes(answer.body).decode()))
    assert cells == ["'=1+1", "'-topic/1/2", "-1"]
