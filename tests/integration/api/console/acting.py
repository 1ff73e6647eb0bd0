"""Acts of people in the console, as steps of which tests make whole flows."""

from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Message
from playwright.sync_api import Error, Page, Request, expect

from tests.process.api.console.browsing import LONGEST_MS
from tests.services.kafka import Headers
from tests.services.site import Site
from tests.services.waiting import wait_until

SOURCE: Final = "reminders"
PASSED: Final = "passed"  # target of markers


def fill(page: Page, **fields: str) -> None:
    for name, text in fields.items():
        page.fill(f"main [name={name}]", text)


def wait_shown(page: Page, selector: str) -> None:
    """Ask for the page again until it has this: what was sent a moment ago is read soon.

    A live part whose work has come to a step has its page read again, too. Where that falls into what is asked here,
    Playwright raises an error with words for each moment; the next look succeeds.
    """

    def is_shown() -> bool:
        try:
            page.reload()
            return page.locator(selector).count() > 0
        except Error:
            return False

    wait_until(is_shown, otherwise=lambda: f"no {selector}: {page.inner_text('main')}")


def told(page: Page, words: str) -> None:
    """An action says so on the page that is back."""
    expect(page.locator(".toast")).to_contain_text(words, timeout=LONGEST_MS)


def confirm(page: Page, what: str, number: int) -> None:
    """Open a button that wants a number, type it, go on."""
    page.click(f"summary:has-text('{what} {number} …')")
    page.fill("details[open] input[name=count]", str(number))
    page.click("details[open] button")


@dataclass
class Desk:
    """Two people before the console of a site: who acts, and who approves what that one has planned.

    `root` is the console's address; `posted` are paths below it, of the forms that either has sent.
    """

    site: Site
    root: str
    page: Page
    other: Page
    posted: list[str] = field(default_factory=list)
    markers: int = 0

    def __post_init__(self) -> None:
        for page in (self.page, self.other):
            page.on("request", self._asked)

    def _asked(self, request: Request) -> None:
        if request.method == "POST":
            self.posted.append(request.url.removeprefix(self.root).partition("?")[0])

    def go(self, path: str) -> Page:
        """The page at this path below /ui."""
        self.page.goto(self.root + path)
        return self.page

    def came(self, role: str, count: int = 1) -> list[Message]:
        """Records of a target, once there are so many; none: at once. AssertionError where there are more."""
        topic = self.site.name(role)
        self.site.kafka.read(topic, count)
        found = self.site.kafka.read_all(topic)
        assert len(found) == count, [(message.key(), message.value()) for message in found]
        return found

    def send(self, target: str, id: str, delay: str = "1h", headers: Headers = ()) -> None:
        """Send a message by Kafka; its key and value are named after its id."""
        named = [("tickover-target", self.site.name(target).encode()), ("tickover-id", id.encode())]
        given = [*headers, *named, ("tickover-delay", delay.encode())]
        self.site.send(self.site.name(SOURCE), given, f"value of {id}".encode(), f"key of {id}".encode())

    def hold(self, target: str, id: str, headers: Headers = ()) -> Page:
        """The page of a message that was sent just now, and is held for an hour."""
        self.send(target, id, headers=headers)
        self.go(f"/messages/{id}")
        wait_shown(self.page, "text=Fire now")
        return self.page

    def wait_passed(self) -> None:
        """Return when what the source got until now was decided, and what of it is due is out: a marker sent after it
        has come through.
        """
        self.markers += 1
        self.send(PASSED, f"marker-{self.markers}", "1ms")
        self.site.kafka.read(self.site.name(PASSED), self.markers)

    def approve(self, step: str) -> None:
        """Let the plan of this page begin, as somebody else. Its next `step` is offered only then."""
        wait_shown(self.page, "main :text('waits for approval')")
        assert self.page.locator(step).count() == 0
        assert self.page.locator("button:has-text('Approve')").count() == 0, "nobody approves a plan of their own"
        self.other.goto(self.page.url)
        wait_shown(self.other, "button:has-text('Approve')")
        self.other.click("button:has-text('Approve')")
        told(self.other, "Approved")
        wait_shown(self.page, step)
