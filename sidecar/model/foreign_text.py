"""Text that others wrote, as it may be shown: topic names, ids, error texts, whatever a broker or a user said.

On a terminal and in a log every character of it is visible: control characters (C0, DEL, C1), line and paragraph
separators, marks that turn the direction of writing, and halves of surrogate pairs are written as escapes. So nobody
clears a screen, forges a line of a log, or shows something else than there is. Pure.
"""

import re
from socket import AF_INET, AF_INET6, inet_pton
from typing import Final

LINES: Final = "\n\t"  # what our own words may have: they consist of lines
ADDRESS: Final = "<address>"

_TOKEN: Final = re.compile(
    r"[a-z][\w+.-]{0,30}://[^\s\"'`<>]+"
    r"|\[[0-9a-f:.]{2,45}\](?::\d{1,5})?"
    r"|[\w.:@+#%-]{3,300}",
    re.IGNORECASE,
)
_HOST: Final = re.compile(r"[a-z0-9_][\w-]{0,62}(?:\.[a-z0-9_][\w-]{0,62}){0,9}", re.IGNORECASE)
_PORT_DIGITS: Final = range(2, 6)
_LINE_DIGITS_MAX: Final = 3  # `status:503` names no port
_IP: Final = re.compile(r"[0-9a-f:.]{2,45}", re.IGNORECASE)
_OBJECT: Final = re.compile(r"[0-9a-f]{6,}", re.IGNORECASE)  # behind @: `Order@6d06d69c`, as `orders@1`, is no mailbox
# Last parts of names: of hosts with one dot, and of files with code, whose lines look like ports.
_DOMAINS: Final = frozenset((
    "biz", "cloud", "cluster", "com", "corp", "dev", "edu", "example", "gov", "home", "info", "internal", "intranet",
    "invalid", "io", "lan", "local", "mil", "net", "org", "private", "svc", "test",
))  # fmt: skip
_CODE: Final = frozenset((
    "c", "cc", "cpp", "cs", "ex", "go", "groovy", "h", "java", "js", "jsx", "kt", "lua", "mjs", "php", "pl", "py", "rb",
    "rs", "scala", "sql", "swift", "ts", "tsx",
))  # fmt: skip


def visible(text: str, kept: str = "") -> str:
    """The text with escapes (`\\x1b`, `\\u202e`) for whatever can't be seen, but for the characters of `kept`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in kept else _escape(char) for char in text)


def visible_json(document: str) -> str:
    """A JSON text that says the same, with JSON's own escapes for whatever can't be seen, but for ends of lines."""
    if document.isprintable():
        return document
    return "".join(char if char.isprintable() or char == "\n" else _json_escape(char) for char in document)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def without_addresses(text: str) -> str:
    """The text with `<address>` for what looks like a mail address, a URL, an IP address, or a host with or without its
    port. Names of classes and lines of code stay. It is a guess, in favour of hiding.
    """
    return _TOKEN.sub(lambda found: _hidden(found[0]), text)


def _hidden(token: str) -> str:
    core = token.rstrip(".:-")
    if "://" in core or _is_address(core.rpartition("#")[2]) or _is_address(core.strip("[]")):
        return ADDRESS + token[len(core) :]
    return token


def _is_address(token: str) -> bool:
    name, at, host = token.rpartition("@")
    if at:
        return bool(name and host) and not (_OBJECT.fullmatch(host) or host.isdigit())
    host, _, port = token.rpartition(":")
    has_port = port.isdigit() and len(port) in _PORT_DIGITS
    if _is_ip(token) or (has_port and _is_ip(host)):
        return True
    name = host if has_port else token
    if not _HOST.fullmatch(name) or name.replace(".", "").isdigit():
        return False
    labels = name.split(".")
    if labels[-1].lower() in _CODE:
        return False
    if has_port:
        return len(labels) > 1 or len(port) > _LINE_DIGITS_MAX
    return (
        name.islower() and labels[-1].isalpha() and (len(labels) > 2 or (len(labels) == 2 and labels[-1] in _DOMAINS))
    )


def _is_ip(text: str) -> bool:
    address = text.strip("[]").partition("%")[0]
    if not _IP.fullmatch(address):  # most words are no address, and the exception that says so takes long
        return False
    try:
        inet_pton(AF_INET6 if ":" in address else AF_INET, address)
    except OSError:
        return False
    return True
