"""Names of the headers that tickover reads and writes, and what becomes of each."""

from typing import Final

CONTROL_PREFIX: Final = "tickover-"
OCCURRENCE_IDS: Final = "schedule:"  # what the ids of schedules' occurrences begin with, and no others
DELIVER_AT: Final = "tickover-deliver-at"
DELAY: Final = "tickover-delay"
TARGET: Final = "tickover-target"
TARGET_PARTITION: Final = "tickover-target-partition"
ID: Final = "tickover-id"
ACTION: Final = "tickover-action"
IF_OFFSET: Final = "tickover-if-offset"
EXPIRES_AT: Final = "tickover-expires-at"
SPREAD: Final = "tickover-spread"
ATTEMPT: Final = "tickover-attempt"
FIRST_FAILURE: Final = "tickover-first-failure"
ERROR_CLASS: Final = "tickover-error-class"
ERROR_MESSAGE: Final = "tickover-error-message"
ORIGIN: Final = "tickover-origin"
DUE: Final = "tickover-due"
POLICY: Final = "tickover-policy"
REASON: Final = "tickover-reason"
SOURCE: Final = "tickover-source"
DETAIL: Final = "tickover-detail"
# Of a quarantined record that left its value behind, whatever its reason: how `tickover-detail` begins.
BY_REFERENCE: Final = "too large to be produced"
# Lineage of what was a dead letter once. To everybody else these are the user's own headers: they travel along.
REDRIVE_PLAN: Final = "tickover-redrive-plan"
REDRIVE_COUNT: Final = "tickover-redrive-count"
REDRIVE_SOURCE: Final = "tickover-redrive-source"
# Who changed the content of what was a dead letter, when it was sent again.
EDITED_BY: Final = "tickover-edited-by"
# Of a control record: the change of many messages that sent it. The engine knows nothing of these.
CHANGE: Final = "tickover-change"
# Which slice of a pipeline's job has sent it: by this alone a run that goes on knows what is its own.
JOB: Final = "tickover-job"
# By what becomes of them when a record comes in. First: heeded, then gone.
INSTRUCTIONS: Final = frozenset({DELIVER_AT, DELAY, TARGET, TARGET_PARTITION, ACTION, IF_OFFSET, EXPIRES_AT, SPREAD})
FAILURE: Final = frozenset({ERROR_CLASS, ERROR_MESSAGE})  # read, and passed on
COUNTED: Final = frozenset({ATTEMPT, FIRST_FAILURE})  # read by retry policies, which rewrite them
WRITTEN: Final = frozenset({DUE, POLICY, REASON, SOURCE, DETAIL, JOB})  # tickover's own words about it: written anew
# What a dead letter doesn't keep when it is sent again: undecided, back to its source, or to be delivered anew.
GONE_UNDECIDED: Final = frozenset({REDRIVE_PLAN, REDRIVE_COUNT, REDRIVE_SOURCE, REASON, SOURCE, DETAIL, JOB})
GONE_ANEW: Final = GONE_UNDECIDED | WRITTEN | COUNTED | FAILURE | INSTRUCTIONS

OFFSET_MAX: Final = (1 << 63) - 1  # Kafka's, and the largest that `tickover-if-offset` may name
