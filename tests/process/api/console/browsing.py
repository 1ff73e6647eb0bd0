"""Chromium before the console of an API over fakes: pages, pictures, and what axe says of them."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final

import httpx
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

from api.console.page import ConsoleOptions
from tests.source import ROOT
from tests.unit.api_world import World

OPTIONS: Final = ConsoleOptions(
    group="payments", path="", authenticates=False, parts=True, idle_s=1_800, longest_s=43_200
)
PICTURES: Final = ROOT / "reports" / "console"
SERIOUS: Final = ("serious", "critical")
WIDE: Final = 1_440
NARROW: Final = 360
HEIGHT: Final = 900
LONGEST_MS: Final = 60_000  # for what never comes; how fast it comes is not judged here
FITS_MS: Final = 10_000
FIRST_PAGE_BYTES_MAX: Final = 200_000


def chromium() -> str:
    """Debian's chromium."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found is not None, "chromium is missing: tests/system-packages installs it"
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser. While it is there, nothing else may run a loop in this thread."""
    expect.set_options(timeout=LONGEST_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def served(world: World) -> Iterator[str]:
    """Base URL of a world's API while it is served."""
    config = uvicorn.Config(world.app, "127.0.0.1", 0, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="console")
    started = threading.Event()
    begin = server.startup

    async def startup(sockets: Any = None) -> None:
        await begin(sockets)
        started.set()

    server.startup = startup  # type: ignore[method-assign]
    thread.start()
    try:
        assert started.wait(30)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        world.app.state.events.stop()
        server.should_exit = True
        thread.join(30)


def client_of(url: str, **options: Any) -> httpx.Client:
    """A client without a browser."""
    return httpx.Client(base_url=url, timeout=LONGEST_MS / 1_000, **options)


@dataclass
class Console:
    """A console in a browser. `problems` are errors of scripts and of the policy of contents, and foreign requests: to
    neither the console nor `others`.
    """

    url: str
    browser: Browser
    others: tuple[str, ...] = ()
    problems: list[str] = field(default_factory=list)
    received: dict[str, int] = field(default_factory=dict)
    contexts: list[BrowserContext] = field(default_factory=list)

    def open(
        self, path: str = "/", *, width: int = WIDE, scheme: Any = "light", script: bool = True, token: str = ""
    ) -> Page:
        """A page of the console, in a browser of its own."""
        context = self.browser.new_context(
            viewport={"width": width, "height": HEIGHT}, color_scheme=scheme, java_script_enabled=script,
            timezone_id="Europe/Berlin", reduced_motion="reduce",
        )  # fmt: skip
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LONGEST_MS)
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("request", self._asked)
        page.on("requestfinished", self._finished)
        if token:
            page.goto(f"{self.url}/ui/log-in")
            page.fill("input[name=token]", token)
            page.click("text=Log in >> visible=true >> nth=-1")
        page.goto(f"{self.url}/ui{path}")
        return page

    def close(self) -> None:
        for context in self.contexts:
            context.close()

    def _heard(self, kind: str, text: str) -> None:
        if kind == "error" and "status of 4" not in text:
            self.problems.append(text)

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((f"{self.url}/ui", "data:", "about:", *self.others)):
            self.problems.append(f"asks for {request.url}")

    def _finished(self, request: Request) -> None:
        sizes = request.sizes()
        self.received[request.url] = sizes["responseBodySize"] + sizes["responseHeadersSize"]


def look_at(console: Console, path: str, name: str, ready: Callable[[Page], object] = lambda _: None) -> None:
    """A page in light and dark, wide and narrow: nothing serious of axe, nothing wider than its window, and no error in
    the browser. With TICKOVER_TEST_PICTURES set, also a picture of each in `reports/console`.
    """
    page = console.open(path)
    ready(page)
    assert findings(page) == [], "light"
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    assert findings(page, "color-contrast") == [], "dark"
    page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=NARROW, timeout=FITS_MS)
    if os.environ.get("TICKOVER_TEST_PICTURES"):
        take_pictures(console, path, name, ready)
    assert console.problems == []


def take_pictures(console: Console, path: str, name: str, ready: Callable[[Page], object]) -> None:
    """Keep how a page looks, each time loaded anew: what is drawn has the colours of then."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for scheme, width, suffix in (("light", WIDE, "light"), ("dark", WIDE, "dark"), ("light", NARROW, "light-narrow")):
        page = console.open(path, width=width, scheme=scheme)
        ready(page)
        page.screenshot(path=PICTURES / f"{name}-{suffix}.png", full_page=True)


def findings(page: Page, *rules: str) -> list[str]:
    """Findings of axe that are serious or worse, in a line each: of these rules, or of all."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    result: Mapping[str, Any] = json.loads(page.evaluate("o => axe.run(o).then(JSON.stringify)", options))
    return [
        f"{one['id']}: {node['target']} {node['failureSummary'][:200]}"
        for one in result["violations"]
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]
