"""Style sheet, scripts and what is copied from npm (`make console`): files with their hash in the address, so that a
browser keeps them.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
NAMES: Final = (
    "console.css", "console.js", "charts.js", "htmx/htmx.min.js", "uplot/uPlot.iife.min.js", "uplot/uPlot.min.css",
    "icon.svg",
)  # fmt: skip
HASH_LENGTH: Final = 12
FOR_EVER: Final = "public, max-age=31536000, immutable"


class File(NamedTuple):
    """A file, its media type and the hash in its address."""

    content: bytes
    media_type: str
    hash: str


@cache
def all_files() -> Mapping[str, File]:
    """By name below `static`."""
    folder = files("api.console").joinpath("static")
    contents = {name: folder.joinpath(name).read_bytes() for name in NAMES}
    return {
        name: File(content, TYPES[name.rpartition(".")[2]], hashlib.sha256(content).hexdigest()[:HASH_LENGTH])
        for name, content in contents.items()
    }


def address_of(name: str) -> str:
    """Path of a file below the console's, for templates."""
    return f"/static/{all_files()[name].hash}/{name}"


async def serve(request: Request) -> Response:
    """A file; of another hash than today's it isn't there."""
    file = all_files().get(request.path_params["name"])
    if file is None or request.path_params["hash"] != file.hash:
        return PlainTextResponse("There is no such file.", 404)
    media_type = f"{file.media_type}; charset=utf-8"
    return Response(file.content, media_type=media_type, headers={"Cache-Control": FOR_EVER})
