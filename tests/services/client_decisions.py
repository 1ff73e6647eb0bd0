"""Decisions of Java's clients, asked of their own code: one JVM for all questions."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from broker.clients.assignors.assignor import PartitionRacks, Subscription
from purgatory.log_offsets import TopicPartition
from tests.services.class_archive import QUICK
from tests.services.maven_jars import broker_jars

PROGRAM: Final = Path(__file__).with_name("java") / "ClientDecisions.java"
JAVA_OPTIONS: Final = (*QUICK, "-Xmx512m", "-Dlog4j2.level=OFF")
END_S: Final = 200.0  # of what takes 3 s on an idle machine


@dataclass(frozen=True, slots=True)
class Case:
    """Input of an assignor."""

    assignor: str
    partitions: PartitionRacks
    subscriptions: Mapping[str, Subscription]


@dataclass(frozen=True, slots=True)
class Decisions:
    """In the order of the questions: assignments (None: the assignor threw), the first member's user data, hashes."""

    assignments: Sequence[dict[str, list[TopicPartition]] | None]
    user_data: Sequence[bytes | None]
    hashes: Sequence[int]


def ask_java(cases: Sequence[Case], keys: Sequence[bytes]) -> Decisions:
    """Ask Kafka's classes. LookupError: Java, Maven or jars missing."""
    jars = broker_jars()
    java = shutil.which("java") or "java"
    question = json.dumps({"cases": [_written(case) for case in cases], "keys": [key.hex() for key in keys]})
    done = subprocess.run(
        [java, *JAVA_OPTIONS, "-cp", f"{jars}/*", str(PROGRAM)],
        input=question,
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assignments = [None if one is None else _assignment(one) for one in answer["assignments"]]
    user_data = [None if one is None else bytes.fromhex(one) for one in answer["user_data"]]
    return Decisions(assignments, user_data, [number & 0xFFFFFFFF for number in answer["hashes"]])


def _written(case: Case) -> dict[str, Any]:
    return {
        "assignor": case.assignor,
        "topics": {
            topic: [sorted(racks) or [None] for racks in all_racks] for topic, all_racks in case.partitions.items()
        },
        "members": [
            {
                "id": member,
                "instance": one.group_instance_id,
                "rack": one.rack_id,
                "topics": list(one.topics),
                "user_data": None if one.user_data is None else one.user_data.hex(),
                "owned": [list(partition) for partition in one.owned_partitions],
                "generation": one.generation_id,
            }
            for member, one in case.subscriptions.items()
        ],
    }


def _assignment(written: Mapping[str, Any]) -> dict[str, list[TopicPartition]]:
    return {member: [TopicPartition(*one) for one in partitions] for member, partitions in written.items()}
