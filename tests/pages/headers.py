"""The page of headers and reasons: names from the code, what becomes of each by asking the code, words from here."""

from typing import Final

from policies import headers
from sidecar.model import header_codec
from sidecar.model.record import Headers, Held, Place
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.redrive_routing import redriven_headers
from tests.pages.text import code, head, table

WORDS: Final = """\
Which headers there are, who writes them and where they are found afterwards. What they mean, with their formats:
[the contract](../contract.md#headers-you-send).

* **You send**: tickover reads it on a record of a delay or retry topic. The others are tickover's own.
* **Emitted**, **dead letter**, **quarantined**: whether it stands on a record that went that way, if it was on the
  record that came, or always when tickover writes it. Attempt, first failure and errors are those of a retry policy.
* **Redriven**: whether it stands on a dead letter that is sent again. On a quarantined record that is sent again all
  stay but reason, source, detail and an earlier redrive's.

"""
# A header that the code defines and that has no line here, or the other way round, fails the test of the pages.
MEANINGS: Final = {
    headers.DELIVER_AT: "when, as a time",
    headers.DELAY: "when, as a duration from the record's timestamp",
    headers.TARGET: "the target topic",
    headers.TARGET_PARTITION: "the partition of the target",
    headers.ID: "your name for the message",
    headers.ACTION: "`cancel`, `reschedule` or `fire`: makes it a control record",
    headers.IF_OFFSET: "a control record acts only on the message held under this offset",
    headers.CHANGE: "on a control record: the id of the change of many messages that sent it",
    headers.EXPIRES_AT: "not emitted after this time, but dead-lettered",
    headers.SPREAD: "how much later than due it may be, so that herds move apart",
    headers.ATTEMPT: "number of this delivery",
    headers.FIRST_FAILURE: "when it was first on the retry topic, epoch ms",
    headers.ERROR_CLASS: "why your consumer failed, for the policy",
    headers.ERROR_MESSAGE: "why your consumer failed, for people",
    headers.ORIGIN: "where tickover first met the record: `topic/partition/offset`",
    headers.DUE: "when it was due, epoch ms",
    headers.POLICY: "`name@version` of the policy that decided",
    headers.REASON: "why it is dead or quarantined",
    headers.SOURCE: "where it lay on its source: `topic/partition/offset`",
    headers.DETAIL: "what is wrong, in words",
    headers.JOB: "by which run of `pipeline schedule` or `pipeline redrive` it was sent: `job/run/slice`",
    headers.REDRIVE_PLAN: "the plan that sent it again",
    headers.REDRIVE_COUNT: "how often that was done",
    headers.EDITED_BY: "who changed key, value or headers when it was sent again",
    headers.REDRIVE_SOURCE: "where the dead letter lay: `topic/partition/offset`",
}
READ: Final = headers.INSTRUCTIONS | headers.FAILURE | headers.COUNTED | {headers.ID, headers.ORIGIN}


def defined() -> set[str]:
    """All header names in policies/headers.py."""
    texts = {value for value in vars(headers).values() if isinstance(value, str)}
    return {text for text in texts if text.startswith(headers.CONTROL_PREFIX) and text != headers.CONTROL_PREFIX}


def travelled() -> list[set[str]]:
    """Headers on an emitted retry, its dead letter, the quarantined record, and the dead letter when it is sent again,
    of a record that had them all."""
    came: Headers = [(name, b"1") for name in MEANINGS]
    parts = header_codec.split(came)
    held = Held(
        1, 1, "t", -1, b"k", b"v", parts.user, "p@1", parts.origin, 1, 1, parts.trailer, -1, "d", parts.size
    )  # fmt: skip
    emitted = header_codec.emission_headers(held, b"s/0/")
    dead = header_codec.dead_letter_headers(held, b"s/0/", "timeout")
    quarantined = header_codec.quarantine_headers(came, b"s/0/1", "loop", "")
    letter = DeadLetter(Place("d", 0, 1), 1, b"k", b"v", dead)
    again = redriven_headers(letter, to_its_source=False, leg="1/1")
    return [{name for name, _ in written} for written in (emitted, dead, quarantined, again)]


def page() -> str:
    """The whole text."""
    ways = travelled()

    def mark(is_so: bool) -> str:
        return "yes" if is_so else ""

    rows = (
        (
            code(name),
            MEANINGS[name],
            mark(name in READ),
            *(mark(name in way) for way in ways),
        )
        for name in sorted(MEANINGS)
    )
    heads = ("header", "what", "you send", "emitted", "dead letter", "quarantined", "redriven")
    return head("Headers", "policies/headers.py and sidecar/model/header_codec.py", WORDS) + table(heads, rows)
