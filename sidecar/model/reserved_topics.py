"""Topics that no message comes from and none goes to: tickover's own, those of its other groups, and Kafka's.

A record in the topic of policies would be a policy, one in a ledger a block, one in the audit topic something that was
done. So neither a policy nor a header, a request or what Redis has makes such a topic a source or a target. What reads,
decides, emits or sends for a caller asks here.
"""

import re
from dataclasses import dataclass
from typing import Final

from policies.glob import is_exact
from policies.model import Policy

INTERNAL_PREFIX: Final = "__"  # of Kafka's own topics
OWN_PREFIX: Final = "tickover."
NOT_A_SOURCE: Final = "not_a_source"  # the reason where a record would go where the group reads nothing
RESERVED: Final = "is one of tickover's own topics, or of Kafka's"  # what is said of such a topic
# Kafka's, and what tickover calls its topics where no setting says otherwise, in any group.
BY_NAME: Final = (
    r"__.*|tickover\.(?:policies|quarantine|.+\.(?:ledger|audit|redrives|redriven|changes|schedules|pauses))"
)
_BY_NAME: Final = re.compile(BY_NAME)


@dataclass(frozen=True, slots=True)
class ReservedTopics:
    """`topic in reserved` says whether a topic is one of them. `own`: this group's, as its settings call them, and
    `quarantine` is one of these: dead letters may go there all the same.
    """

    own: frozenset[str] = frozenset()
    quarantine: str = ""

    def __contains__(self, topic: object) -> bool:
        if topic in self.own:
            return True
        if not isinstance(topic, str) or not topic.startswith((INTERNAL_PREFIX, OWN_PREFIX)):
            return False
        return _BY_NAME.fullmatch(topic) is not None


def reserved_in(policy: Policy, reserved: ReservedTopics) -> str:
    """First reserved topic that a policy names, in words; empty: none. Globs name none, and match none."""
    target, letters = policy.target, policy.dead_letter
    named = [
        *(("match.topics", topic) for topic in policy.match.topics),
        *([("target.topic", target.topic)] if target.topic is not None else []),
        *(("target.allow", topic) for topic in target.allow),
        *([("dead_letter.topic", letters.topic)] if letters and letters.topic != reserved.quarantine else []),
    ]
    return next((f"{field}: {topic} {RESERVED}" for field, topic in named if is_exact(topic) and topic in reserved), "")
