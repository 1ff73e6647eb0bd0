"""Lists whose pages may have nothing on them, though more is behind."""

import html
import re
from typing import Any

from api.access.auth import Role
from sidecar.operations.bulk.receipt_log import Place
from tests.unit.api.access.role_world import done_change, full_world
from tests.unit.api.console.test_console_roles import OPTIONS, Viewer
from tests.unit.api_world import REMINDERS


def test_receipts_behind_those_of_other_changes_are_found() -> None:
    with full_world(console=OPTIONS) as api:
        id, page = done_change(api)["id"], api.changing.jobs.page

        def behind_others(plan_id: str, start: Place, limit: int) -> Any:
            return ([], Place(1_000, 0)) if start.offset < 1_000 else page(plan_id, Place(0, 0), limit)

        api.changing.jobs.page = behind_others  # type: ignore[method-assign]
        viewer = Viewer(api, Role.READ)
        first = viewer.get(f"/changes/{id}")
        assert "There are more behind them" in first.text
        following = re.search(r'rel="next" href="/ui([^"]*)"', first.text)
        assert following is not None
        assert "cancelled" in viewer.get(html.unescape(following[1])).text.partition("<h3>Receipts")[2]


def test_a_policy_of_many_versions_shows_the_last() -> None:
    with full_world(console=OPTIONS) as api:
        for number in range(600):
            api.add({**REMINDERS, "delay": {"default": f"{number + 1}m"}})
        last = api.policies.table.policies["reminders"].version
        page = Viewer(api, Role.ADMIN).get("/policies/reminders").text
        assert f"Version {last}, by" in page
        assert f'name="etag" value="&#34;{last}&#34;"' in page


def test_a_page_whose_cursor_is_good_no_more_leads_to_the_first() -> None:
    with full_world(console=OPTIONS) as api:
        answer = Viewer(api, Role.READ).get("/messages?target=push&cursor=gone")
        assert answer.status_code == 422
        assert 'href="/ui/messages?target=push">First page' in answer.text
