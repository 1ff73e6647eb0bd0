"""Ids in memory: who can be acted on, and who is leaving until the ledger says that it has left."""

from policies.headers import ID
from sidecar.engine.partition.partition import Identities
from sidecar.model.record import Headers, Held


def named(offset: int, message_id: str = "a") -> Held:
    trailer: Headers = [(ID, message_id.encode())] if message_id else []
    return Held(1, offset, "t", -1, None, None, [], "p@1", None, 0, -1, trailer, -1, "", 0)


def test_what_has_fired_is_leaving_until_it_is_settled() -> None:
    ids = Identities()
    ids.know([named(1, "a"), named(2, "b"), named(3, "")])
    ids.fired([named(1, "a"), named(3, "")])
    assert ids.get("a") is None
    assert ids.get("b") == named(2, "b")
    assert ids.leaving == {1: named(1, "a")}
    ids.settled([0, 2, 3])
    assert list(ids.leaving) == [1]
    ids.settled(range(5))
    assert ids.leaving == {}


def test_firing_an_older_record_leaves_the_latest_of_its_id_known() -> None:
    ids = Identities()
    ids.know([named(1), named(5)])
    ids.fired([named(1)])
    assert ids.get("a") == named(5)
    assert list(ids.leaving) == [1]
