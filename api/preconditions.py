"""No lost updates (RFC 9110 section 13): an ETag is a version, a write says which it replaces."""

import re
from typing import Final

from api.problems import Problem

_ETAGS: Final = re.compile(r'\s*(?:W/)?"[\x21\x23-\x7e]*"\s*(?:,\s*(?:W/)?"[\x21\x23-\x7e]*"\s*)*')
_ETAG: Final = re.compile(r'(?:W/)?"[\x21\x23-\x7e]*"')


def etag(version: int) -> str:
    """The strong ETag of a version."""
    return f'"{version}"'


def expected_version(if_match: str | None, if_none_match: str | None, current: int, thing: str = "policy") -> int:
    """The version a write must find, 0: none; `current` is what there is. Raises `Problem` (412, 428)."""
    if if_match is None and if_none_match is None:
        detail = "Say what this replaces: If-None-Match: * to create, If-Match with the ETag to replace."
        raise Problem(428, "precondition-required", detail)
    if if_match is not None and if_none_match is not None:
        raise Problem(422, "invalid-precondition", "Give If-Match or If-None-Match, not both.")
    if if_match is not None:
        return _matched(if_match, current, thing)
    if if_none_match is None or if_none_match.strip() != "*":
        raise Problem(422, "invalid-precondition", "Only If-None-Match: * is understood here.")
    if current:
        raise mismatch(f"There is a {thing} of this name already.", current)
    return 0


def _matched(if_match: str, current: int, thing: str) -> int:
    if if_match.strip() != "*":
        if not _ETAGS.fullmatch(if_match):
            raise mismatch(
                'If-Match is a list of ETags like "3", with their quotes, or *: this matches nothing.', current
            )
        # Strong comparison: a weak tag (W/"3") matches nothing.
        if etag(current) not in _ETAG.findall(if_match):
            raise mismatch(f"The {thing} is not, or no longer, at this version.", current)
    if not current:
        raise mismatch(f"There is no {thing} of this name.", current)
    return current


def mismatch(detail: str, current: int) -> Problem:
    """412, with the ETag of what there is."""
    headers = {"ETag": etag(current)} if current else {}
    return Problem(412, "precondition-failed", detail, headers)
