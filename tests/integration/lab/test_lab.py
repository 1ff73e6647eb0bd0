"""The latency laboratory on the reference broker and on a real Kafka whose address it is given."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from sidecar.lab.latency import PARTS
from tests.services.kafka import Kafka
from tests.source import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(600)]

ENDED_S = 300.0
FEW = ("--replicas", "1", "--linger", "5", "--batch-size", "16384", "--rate", "100", "--seconds", "1")


def test_both_are_measured_drawn_and_explained(kafka: Kafka, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "acks.svg"
    command = [sys.executable, "-m", "sidecar", "broker", "lab", "acks", *FEW, "-o", "json", "--plot", str(plot)]
    command += ["--bootstrap-servers", kafka.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDED_S, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    cases = [(cluster, acks, 5) for cluster in ("reference", "given") for acks in (0, 1, -1)]
    assert sorted((row["cluster"], row["acks"], row["linger_ms"]) for row in rows) == sorted(cases)
    for row in rows:
        assert row["records"] >= 50
        assert 0 < row["produce_p50_ms"] <= row["produce_p99_ms"]
        assert 0 < row["consume_p50_ms"] <= row["consume_p99_ms"]
        assert all(row[part] is not None for part in PARTS)
    for cluster in ("reference", "given"):
        assert f"{cluster}: acks=0 ends at" in done.stderr
    drawn = plot.read_text(encoding="utf-8")
    assert all(words in drawn for words in ("given", "reference", "delayed fetch"))
    known = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=60).topics
    assert not [name for name in known if name.startswith("tickover-lab")]
