"""The headers of a letter that is sent again. Pure.

A redrive is a new delivery: attempt and first failure are gone, so that attempts and time are counted anew; so are the
words of the last failure, because a consumer that fails again adds its own, and a repeated header is a bad one. What
stays is where the record was first met (`tickover-origin`), its id, and all that is the user's.

A letter that goes back to its source undecided (quarantine) keeps its control headers: they say what was asked for.
"""

from policies.headers import GONE_ANEW, GONE_UNDECIDED, REDRIVE_COUNT, REDRIVE_PLAN, REDRIVE_SOURCE
from sidecar.model.record import Headers
from sidecar.operations.dead_letters.dead_letter import DeadLetter


def redriven_headers(letter: DeadLetter, to_its_source: bool, leg: str) -> Headers:
    """`leg` is `plan id/number`."""
    gone = GONE_UNDECIDED if to_its_source else GONE_ANEW
    return [
        *(header for header in letter.headers or () if header[0] not in gone),
        (REDRIVE_PLAN, leg.encode()),
        (REDRIVE_COUNT, b"%d" % (letter.redrives + 1)),
        (REDRIVE_SOURCE, str(letter.place).encode()),
    ]
