"""Protocol between the consumers of a group: of the subscription, the topics.

version 2 | topic count 4, of each: length 2, name | user data ... later versions add to the end
"""

from struct import Struct, error
from typing import Final

_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")


def subscribed_topics(subscription: bytes) -> set[str] | None:
    """The topics of a subscription; None if these are not the bytes of one."""
    try:
        (count,) = _INT.unpack_from(subscription, 2)
        position = 6
        topics = set()
        for _ in range(count):
            (length,) = _SHORT.unpack_from(subscription, position)
            name = subscription[position + 2 : position + 2 + length]
            if length < 0 or len(name) != length:
                return None
            topics.add(name.decode())
            position += 2 + length
    except (error, UnicodeDecodeError):
        return None
    return topics
