"""Action of a control record, which has neither target nor attempts, only an id and, to reschedule, a time."""

from collections.abc import Mapping

from policies.decision import BAD_HEADER, RESCHEDULE, TOO_FAR, Act, Control, Refusal
from policies.duration import format_duration
from policies.headers import DELAY, DELIVER_AT, IF_OFFSET, OFFSET_MAX
from policies.request import Request, number_of


def act(request: Request, controls: Mapping[str, Control], timestamp_ms: int, label: str, delay_max_ms: int) -> Act:
    """The action, under the policy of this label. Raises Refusal (bad_header, too_far)."""
    assert request.id is not None, "read_request wants one"
    due_ms = -1
    if request.action == RESCHEDULE:
        if request.deliver_at_ms >= 0:
            due_ms = request.deliver_at_ms
        elif request.delay_ms >= 0:
            due_ms = timestamp_ms + request.delay_ms
        else:
            raise Refusal(BAD_HEADER, f"a reschedule needs {DELIVER_AT} or {DELAY}")
        if due_ms - timestamp_ms > delay_max_ms:
            raise too_far(label, delay_max_ms)
    if_offset = number_of(IF_OFFSET, controls[IF_OFFSET], OFFSET_MAX) if IF_OFFSET in controls else -1
    return Act(request.action, request.id, due_ms, label, timestamp_ms, if_offset)


def too_far(label: str, delay_max_ms: int) -> Refusal:
    """The refusal of a due time that no policy of this limit takes."""
    limit = format_duration(delay_max_ms)
    return Refusal(TOO_FAR, f"due more than {limit} after the record's timestamp (policy {label})")
