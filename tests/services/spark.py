"""What the tests of the jobs run on: settings of a small, quick Spark, and its Kafka connector."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

POM = Path(__file__).with_name("spark-kafka.xml")
FETCH_S = 300.0
SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # Tests run many small queries once: compiling them well takes longer than running them.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


def connector_jars() -> Path:
    """The directory with the connector, fetched by Maven once per machine; raises LookupError when it can't be."""
    if shutil.which("mvn") is None:
        raise LookupError("not installed: mvn")
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tickover"
    directory = root / f"spark-kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:8]}"
    root.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / ".complete").exists():
            command = ["mvn", "-B", "-q", "-f", str(POM), "dependency:copy-dependencies"]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
            result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_S)
            if result.returncode:
                raise LookupError(f"Maven could not fetch the connector: {result.stdout[-500:]}")
            (directory / ".complete").touch()
    return directory


def spark_settings() -> dict[str, str]:
    """A session's settings, the connector among them."""
    jars = ",".join(str(jar) for jar in sorted(connector_jars().glob("*.jar")))
    return {**SETTINGS, "spark.jars": jars}
