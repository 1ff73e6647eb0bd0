"""Fingerprints of failures: an error's class and message without what differs from one occurrence to the next.

    NotFound: user 4711 at "10.0.0.3:5432"   ->   NotFound: user <n> at <text>

Pure. What is replaced is found in one pass, and every part of the pattern is linear in the text, which anybody may
have written.
"""

import hashlib
import re
from typing import Final

from sidecar.model.foreign_text import without_addresses

MESSAGE_LENGTH_MAX: Final = 2_048  # of a message this much is looked at
SHOWN_LENGTH_MAX: Final = 300
DIGITS: Final = 16

_VARIABLE: Final = re.compile(
    r"(?P<uuid>\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b)"
    r"""|(?P<text>"[^"\n]*"|`[^`\n]*`|(?<!\w)'[^'\n]*'(?!\w))"""
    r"|(?P<path>\b[a-z][a-z0-9+.-]{0,20}://[^\s\"'`]+|(?<![\w<])(?:[a-z]:)?(?:[/\\][\w.~%@+-]+)+[/\\]?)"
    # Hexadecimal and decimal alike: a hash of digits only is one of letters and digits the next time.
    r"|(?P<n>\b(?:0x[0-9a-f]+|(?=[a-f]*[0-9])[0-9a-f]{8,})\b|\d+(?:[.,:]\d+)*)",
    re.IGNORECASE,
)


def normalised(message: str) -> str:
    """The message without numbers, hexadecimal, UUIDs, quoted text and paths; white space is one blank."""
    text = _VARIABLE.sub(lambda found: f"<{found.lastgroup}>", message[:MESSAGE_LENGTH_MAX])
    return " ".join(text.split())[:SHOWN_LENGTH_MAX]


def shown(message: str) -> str:
    """The message as lists have it: normalised, and without addresses, which a fingerprint still tells apart."""
    return normalised(without_addresses(message[:MESSAGE_LENGTH_MAX]))


def fingerprint(error_class: str, message: str) -> str:
    """16 hexadecimal digits: the same for failures of one class whose normalised messages are equal."""
    text = f"{error_class}\n{normalised(message)}"
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:DIGITS]
