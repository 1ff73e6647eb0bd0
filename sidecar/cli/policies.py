"""`tickover policies`: reading and changing the rulebook through a sidecar; `validate` needs none."""

from typing import Annotated, Any, Final

import typer

from policies.model import Policy, policy_document
from policies.topic.difference import difference
from sidecar.cli.messages.options import read_header, time_ms
from sidecar.cli.named_resources import BareFile, Force, NamedResource, Words, add_common, file_option, name_argument
from sidecar.cli.output import (
    Failure,
    Form,
    OutputOption,
    Status,
    output_before,
    say,
    show,
    show_items,
    show_result,
)
from sidecar.cli.rest_client import TokenOption, UrlOption, connect, given
from sidecar.model.reserved_topics import reserved_in
from sidecar.settings.settings import Settings

POLICY: Final = NamedResource("policy", "policies", Policy, policy_document, can_force=True)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show, change and check policies.")
app.callback()(output_before)

Name = Annotated[str, name_argument(POLICY)]
File = Annotated[str | None, file_option(POLICY)]


def _summary(item: dict[str, Any]) -> dict[str, Any]:
    """One line of the list."""
    target = item.get("target") or {}
    return {
        "name": item.get("name"),
        "version": item.get("version"),
        "kind": "retry" if item.get("retry") else "delay",
        "topics": (item.get("match") or {}).get("topics"),
        "target": target.get("topic") or target.get("allow"),
        "dead_letter": (item.get("dead_letter") or {}).get("topic"),
        "managed_by": item.get("managed_by"),
    }


_WORDS: Final = Words(
    list="List all policies.", get="Show one policy.", delete="Delete a policy. Its versions stay in the history."
)
add_common(app, POLICY, _WORDS, _summary)


@app.command()
def versions(
    context: typer.Context,
    name: Name,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Show every version of a policy."""
    with connect(context, url, token) as sidecar:
        items = list(sidecar.items(POLICY.path(name) + "/versions"))
    show_items(items, _version, form)


@app.command()
def diff(
    context: typer.Context,
    name: Name,
    before: Annotated[int, typer.Argument(min=1, help="The earlier version.")],
    after: Annotated[int | None, typer.Argument(min=1, help="The later one. Default: the last.")] = None,
    url: UrlOption = "",
    token: TokenOption = None,
) -> None:
    """Show what changed between two versions, as lines of YAML behind -, + or a space."""
    with connect(context, url, token) as sidecar:
        versions = {item["version"]: item["policy"] for item in sidecar.items(POLICY.path(name) + "/versions")}
    later = max(versions) if after is None else after
    for version in (before, later):
        if version not in versions:
            raise Failure(f"policy {name} has no version {version}", Status.NOT_FOUND)
    lines = difference(versions[before], versions[later])
    for line in lines:
        typer.echo(line)
    if not lines:
        say(f"versions {before} and {later} are equal")


@app.command()
def rollback(
    context: typer.Context,
    name: Name,
    version: Annotated[int, typer.Argument(min=1, help="The version to return to.")],
    force: Force = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Make a new version that equals an earlier one."""
    with connect(context, url, token) as sidecar:
        path = POLICY.path(name) + "/rollback" + ("?force=true" if force else "")
        answer = sidecar.call("POST", path, {"version": version})
    now = answer.headers.get("ETag", "").removeprefix("W/").strip('"')
    say(f"policy {name} is as in version {version} again; this is version {now}")
    show_result({"name": name, "result": "rolled back", "version": int(now), "policy": answer.json()}, form)


# The parameters of a command are its options: they cannot be fewer than what the user may say.
@app.command()
def explain(
    context: typer.Context,
    topic: Annotated[str | None, typer.Option(help="Source topic of the record.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="name=value; may be repeated.")] = None,
    policy: Annotated[str | None, typer.Option(help="Ask only this policy.")] = None,
    file: Annotated[str | None, typer.Option("--file", "-f", help="Take the policy from this YAML file.")] = None,
    timestamp: Annotated[
        str | None, typer.Option(help="Of the record: RFC 3339 with zone, or epoch milliseconds; default: now.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Of the record; jitter depends on it. Default: 0.")
    ] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Of the record; jitter depends on it. Default: 0.")] = None,
    place: Annotated[str | None, typer.Option(help="topic/partition/offset, in place of these three.")] = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Show what would become of a record, with all its attempts. Nothing is sent or changed."""
    record = given({"topic": topic, "partition": partition, "offset": offset, "place": place})
    if (topic is None) == (place is None) or (place is not None and len(record) > 1):
        raise Failure("say where the record lies: --topic with --partition and --offset, or --place", Status.USAGE)
    record["headers"] = [read_header(text) for text in header or ()]
    if timestamp is not None:
        record["timestamp"] = time_ms("--timestamp", timestamp)
    asked = policy if file is None else policy_document(_one_of(file, policy))
    with connect(context, url, token) as sidecar:
        answer = sidecar.document("POST", "/v1/policies/explain", {"policy": asked, "record": record})
    if form is not Form.TABLE:
        show(answer, form)
        return
    show({name: answer[name] for name in ("policy", "candidates", "decision", "end") if name in answer}, form)
    if steps := answer.get("schedule"):
        show(steps, form)


def _one_of(file: str, name: str | None) -> Policy:
    """The one policy of a file, or the one of the name."""
    policies = [policy for policy in POLICY.read(file) if name in (None, policy.name)]
    if len(policies) != 1:
        found = f"{len(policies)} policies" + (f" named {name}" if name else "")
        raise Failure(f"{file}: has {found}; say which one with --policy", Status.USAGE)
    return policies[0]


@app.command()
def validate(bare_file: BareFile = None, file: File = None, form: OutputOption = Form.TABLE) -> None:
    """Check a file of policies, without a sidecar: topics of its own it knows by their default names."""
    name = POLICY.given(bare_file, file)
    policies = POLICY.read(name)
    if not policies:
        raise Failure(f"{name}: no policy in it")
    for policy in policies:
        if what := reserved_in(policy, Settings().reserved_topics):
            raise Failure(f"{name}: policy {policy.name} can't name such a topic: {what}")
    say(f"{name}: {len(policies)} {'policy' if len(policies) == 1 else 'policies'}, all valid")
    show_result([policy_document(policy) for policy in policies], form)


def _version(item: dict[str, Any]) -> dict[str, Any]:
    """One line of the history."""
    policy = item.get("policy")
    return {
        "version": item.get("version"),
        "time": item.get("time"),
        "author": item.get("author"),
        "managed_by": item.get("managed_by"),
        "policy": "deleted" if policy is None else {part: policy[part] for part in policy if part != "name"},
    }
