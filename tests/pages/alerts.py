"""The table of alerts in the guide, from the rules that chart and compose give to Prometheus."""

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from tests.pages.text import code, table, with_parts
from tests.source import ROOT

RULES: Final = ROOT / "charts" / "tickover" / "files" / "alerts.yaml"
GUIDE: Final = ROOT / "docs" / "how-to" / "read-lateness-and-alerts.md"
# Where to read on, beside what the rule says itself.
MORE: Final = {
    "TickoverRedisMemory": "[size it](size-it.md#redis)",
    "TickoverRedisEvicts": "[size it](size-it.md#redis)",
    "TickoverRedisNotPersistent": "[size it](size-it.md#redis)",
    "TickoverLost": "[rebuilding](../failures.md#rebuilding-what-redis-lost)",
    "TickoverPauseForgotten": "[pause a target](protect-a-target.md#pause-a-target)",
    "TickoverRebuilding": "[rebuilding](../failures.md#rebuilding-what-redis-lost)",
    "TickoverConfigFileBad": "[configuration](../configuration.md)",
    "TickoverSecretFileBad": "[secrets](../security.md)",
    "TickoverControlsNotFound": "[cancel and reschedule](cancel-and-reschedule.md)",
    "TickoverQuarantine": "`tickover dead-letters groups --topic tickover.quarantine`",
}
_TEMPLATE: Final = re.compile(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}")


def rules() -> Iterator[dict[str, Any]]:
    """All alerts, in the file's order."""
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        yield from group["rules"]


def words(text: str) -> str:
    """An annotation, with the name of a label or `value` where Prometheus puts what it is."""
    return _TEMPLATE.sub(r"*\1*", text)


def row(rule: dict[str, Any]) -> tuple[str, ...]:
    """An alert's line."""
    said = rule["annotations"]
    means = f"**{words(said['summary'])}.** {words(said['description'])}"
    more = MORE.get(rule["alert"], "")
    return (
        f"{code(rule['alert'])}, {rule['labels']['severity']}",
        code(rule["expr"]),
        rule.get("for", "at once"),
        f"{means} More: {more}" if more else means,
    )


def page() -> str:
    """The whole guide, with its table as the rules are now."""
    heads = ("alert", "when", "for", "what it means, and what to do")
    return with_parts(GUIDE, {"alerts": table(heads, map(row, rules()))})
