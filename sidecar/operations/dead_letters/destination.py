"""Where a letter goes when it is sent again, as far as its headers, its topic and the policies say.

    quarantined                     back to its source, with all its headers: it is decided anew
    dead, its policy is known       to the policy's target, where no header of the record can have said otherwise;
                                    without `dead_letter` the dead-letter topic's own name tells the target
    dead, its policy is not known   by the names that topics have by default: `T-retry` and `T-dlq` are of `T`
    anything else                   nobody knows: an explicit target is needed

A dead letter doesn't carry its target, so what can't be known for certain is not guessed: a message in the wrong topic
is worse than one that waits for a word.
"""

from collections.abc import Callable, Sequence
from typing import Final

from policies.decision import DEAD_REASONS
from policies.fields import is_topic
from policies.glob import is_exact
from policies.headers import SOURCE
from policies.model import Policy, Removed, Versioned
from policies.table import DEAD_LETTER_SUFFIX, RETRY_SUFFIX
from sidecar.operations.dead_letters.dead_letter import DeadLetter, place_of

BY_REFERENCE: Final = "too_large"  # quarantined without its value: there is nothing to send

Versions = Callable[[str], Sequence[Versioned | Removed]]


def is_quarantined(letter: DeadLetter) -> bool:
    """Whether it was set aside undecided, with all its headers, and not given up."""
    return bool(letter.reason) and letter.reason not in DEAD_REASONS


def destination(letter: DeadLetter, versions: Versions) -> str | None:
    """The topic it goes to; None: it needs to be said."""
    source = place_of(letter.text(SOURCE))
    if is_quarantined(letter):
        return source.topic if source else None
    policy = _policy_of(letter, versions)
    target = _by_names(letter, source.topic if source else "") if policy is None else _by_policy(letter, policy)
    return target if target is not None and is_topic(target) else None


def _policy_of(letter: DeadLetter, versions: Versions) -> Policy | None:
    """The version that gave the letter up."""
    name, _, number = letter.policy.partition("@")
    for version in versions(name) if name else ():
        if isinstance(version, Versioned) and str(version.version) == number:
            return version.policy
    return None


def _by_policy(letter: DeadLetter, policy: Policy) -> str | None:
    if policy.retry is not None and policy.dead_letter is None:
        named = letter.place.topic.endswith(DEAD_LETTER_SUFFIX)
        return letter.place.topic.removesuffix(DEAD_LETTER_SUFFIX) if named else None
    source = place_of(letter.text(SOURCE))
    default = policy.target.topic
    if default is None and policy.retry is not None and source and source.topic.endswith(RETRY_SUFFIX):
        default = source.topic.removesuffix(RETRY_SUFFIX)
    possible = {*policy.target.allow, *([default] if default else [])}
    [target] = possible if len(possible) == 1 else [""]
    return target if target and is_exact(target) else None


def _by_names(letter: DeadLetter, source: str) -> str | None:
    if source.endswith(RETRY_SUFFIX):
        return source.removesuffix(RETRY_SUFFIX)
    known = letter.reason or letter.policy  # it carries words of tickover's
    if known and letter.place.topic.endswith(DEAD_LETTER_SUFFIX) and letter.place.topic != source + DEAD_LETTER_SUFFIX:
        return letter.place.topic.removesuffix(DEAD_LETTER_SUFFIX)
    return None
