"""Kafka's classes as the JVM wants them, kept from one start to the next: a broker comes up for half of the CPU time.

`python -m tests.services.class_archive` makes it, once; without it brokers start all the same.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

from sidecar.embedded.java_kafka import KafkaUnavailable, MavenKafka

PLACE: Final = Path(__file__).parents[2] / "build" / "kafka-classes.jsa"
# A broker lives for a minute or two here: to compile its code well takes longer than it saves.
QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
JAVA_OPTIONS: Final = (*QUICK, f"-XX:SharedArchiveFile={PLACE}")  # passed over where it isn't there, or another JVM's


def make() -> None:
    """Start a broker, and let it leave what it has loaded. Raises KafkaUnavailable."""
    PLACE.parent.mkdir(exist_ok=True)
    unfinished = PLACE.with_suffix(".unfinished")
    with tempfile.TemporaryDirectory() as directory:
        kafka = MavenKafka(Path(directory), java_options=(*QUICK, f"-XX:ArchiveClassesAtExit={unfinished}"))
        kafka.start()
        kafka.stop()
    unfinished.replace(PLACE)


if __name__ == "__main__":
    try:
        make()
    except (KafkaUnavailable, OSError) as error:
        sys.exit(f"no archive of Kafka's classes: {error}")
