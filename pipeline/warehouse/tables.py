"""The tables of a pipeline: directories of Parquet files below one root; silver and gold in Delta, if that is wanted.

    <root>/bronze/<table>/batch=<n>/date=<day>/*.parquet     records as Kafka had them
    <root>/silver/<table>/batch=<n>/date=<day>/*.parquet     what they mean
    .../<table>/span-<first>-<last>-<x>/date=<day>/*.parquet finished batches written together, by `compact`
    <root>/gold/<table>/*.parquet                            what came of a report
    <root>/_checkpoints/<stream>                             how far each stream has read

A batch is written by replacing its directory, and it counts only with Spark's `_SUCCESS` in it. So a job that was
killed while it wrote is simply run again: the same batch of the same records replaces what is half there. One that
counts is never written again. A span counts with `_WHOLE` in it; from then on it stands for its batches, which are
still there for readers that had begun before. In Delta (delta.py) a batch is a commit, and Delta compacts.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.errors import PipelineError
from pipeline.warehouse import delta

DAY_MS: Final = 86_400_000
LAST_DAY: Final = 2_932_896  # 9999-12-31; a later one has no name in Parquet
_BATCH: Final = re.compile(r"batch=(\d+)")
_SPAN: Final = re.compile(r"span-(\d+)-(\d+)-[0-9a-f]+")
_DATED: Final = ", batch int, date date"
WHOLE: Final = "_WHOLE"
FORMATS: Final = ("parquet", "delta")
_FORMAT: Final = "table-format"  # no leading `_`: Spark would not read it


class Piece(NamedTuple):
    """A directory of a table that has finished batches: one, or a span of them."""

    first: int
    last: int
    name: str

    @property
    def is_span(self) -> bool:
        """Whether it was written by `compact`."""
        return self.name.startswith("span-")


def date_of(time_ms: str) -> Any:
    """The UTC day of a column of epoch ms as a column; null for times that no calendar has."""
    day = F.floor(F.col(time_ms) / F.lit(DAY_MS)).cast("int")
    return F.when((day >= 0) & (day <= LAST_DAY), F.date_add(F.lit("1970-01-01").cast("date"), day))


@dataclass(frozen=True, slots=True)
class Warehouse:
    """Where the tables are. `root` is any path that Spark can write to: a directory, s3a://, hdfs://."""

    spark: SparkSession
    root: str
    table_format: str = "parquet"

    @classmethod
    def open(cls, spark: SparkSession, root: str, wanted: str = "") -> "Warehouse":
        """One that may be there, in the format that it was begun with; a new one in the `wanted` format.

        Raises PipelineError when it is another, or when Spark can't read it.
        """
        place = cls(spark, root)
        found = place.text(_FORMAT) if place.exists(_FORMAT) else "parquet"
        if wanted and wanted != found:
            if place.exists("silver"):
                raise PipelineError(
                    f"{root} has its tables in {found}: delete silver and gold to have them in {wanted}"
                )
            place.write_text(wanted, _FORMAT)
            found = wanted
        if found == "delta":
            delta.check_available(spark, root)
        return cls(spark, root, found)

    def path(self, *parts: str) -> str:
        """The place of something in the warehouse."""
        return "/".join((self.root.rstrip("/"), *parts))

    def write_batch(self, frame: DataFrame, table: str, batch: int, time_ms: str) -> None:
        """Write one batch of a table, by days of the column `time_ms`; nothing where it counts already.

        To write it again would delete it first: a reader might see half of it, and Kafka may no longer have all of it.
        """
        dated = frame.withColumn("date", date_of(time_ms))
        if self.is_delta(table):
            delta.append(dated, self.path(table), batch)  # Delta itself knows which batches it has had
        elif not self.has_batch(table, batch):
            dated.write.mode("overwrite").partitionBy("date").parquet(self.path(table, f"batch={batch}"))

    def replace(self, frame: DataFrame, table: str) -> None:
        """Replace a whole table without batches: a report."""
        if self.table_format == "delta":
            delta.replace(frame, self.path(table))
        else:
            frame.write.mode("overwrite").parquet(self.path(table))

    def read_report(self, table: str) -> DataFrame:
        """Read a table that `replace` wrote."""
        return self.spark.read.format(self.table_format).load(self.path(table))

    def is_delta(self, table: str) -> bool:
        """Whether the batches of this table are Delta's."""
        return self.table_format == "delta" and table.startswith("silver/")

    def read(self, table: str, schema: str, batch: int | None = None) -> DataFrame:
        """A table's rows, those of unfinished batches left out; no rows where nothing was written yet.

        `schema` is without the partitions `batch` and `date`, which every row has beside it.
        """
        if self.is_delta(table):
            return self._read_delta(table, schema + _DATED, batch)
        pieces = [piece for piece in self.pieces(table) if batch is None or piece.first <= batch <= piece.last]
        paths = [self.path(table, piece.name) for piece in pieces if not piece.is_span]
        reader = self.spark.read.schema(schema + _DATED)
        frames = [reader.option("basePath", self.path(table)).parquet(*paths)] if paths else []
        for piece in pieces:
            if piece.is_span:  # its rows say of which batch they are
                span = self.path(table, piece.name)
                rows = self.spark.read.schema(schema + _DATED).option("basePath", span).parquet(span)
                frames.append(rows if batch is None else rows.where(F.col("batch") == batch))
        return reduce(DataFrame.union, frames) if frames else self.spark.createDataFrame([], schema + _DATED)

    def _read_delta(self, table: str, schema: str, batch: int | None) -> DataFrame:
        if not self._is_begun(table):
            return self.spark.createDataFrame([], schema)
        rows = delta.read(self.spark, self.path(table), schema)
        return rows if batch is None else rows.where(F.col("batch") == batch)

    def read_plain(self, table: str, schema: str) -> DataFrame:
        """A table without batches; no rows where there is none."""
        if not self.exists(table):
            return self.spark.createDataFrame([], schema)
        return self.spark.read.schema(schema).parquet(self.path(table))

    def batches(self, table: str) -> list[int]:
        """The finished batches of a table."""
        if self.is_delta(table):
            return list(range(self._last_in_delta(table) + 1))
        return [number for piece in self.pieces(table) for number in range(piece.first, piece.last + 1)]

    def pieces(self, table: str) -> list[Piece]:
        """Directories that a table is made of, in order: each finished batch is in one of them."""
        names = list(self.names(table))
        spans = self._spans(table, names)
        singles = []
        for number in sorted(int(match[1]) for name in names if (match := _BATCH.fullmatch(name))):
            covered = any(span.first <= number <= span.last for span in spans)
            if not covered and self.exists(table, f"batch={number}", "_SUCCESS"):
                singles.append(Piece(number, number, f"batch={number}"))
        return sorted([*spans, *singles])

    def has_batch(self, table: str, batch: int) -> bool:
        """Whether this batch is finished: as `batches` has it, without a look at all the others."""
        if self.is_delta(table):
            return batch <= self._last_in_delta(table)
        if self.exists(table, f"batch={batch}", "_SUCCESS"):
            return True
        return any(span.first <= batch <= span.last for span in self._spans(table, self.names(table)))

    def _last_in_delta(self, table: str) -> int:
        return delta.last_batch(self.spark, self.path(table)) if self._is_begun(table) else -1

    def _is_begun(self, table: str) -> bool:
        """Whether a table of Delta has a commit: a job may have been killed before the first, with files in place."""
        return any(name.endswith(".json") for name in self.names(table, "_delta_log"))

    def _spans(self, table: str, names: Iterable[str]) -> list[Piece]:
        spans = [Piece(int(match[1]), int(match[2]), match[0]) for name in names if (match := _SPAN.fullmatch(name))]
        chosen: list[Piece] = []
        for span in sorted(spans, key=lambda one: (one.first, -one.last, one.name)):
            if (not chosen or span.first > chosen[-1].last) and self.exists(table, span.name, WHOLE):
                chosen.append(span)
        return chosen

    def bytes_of(self, *parts: str) -> int:
        """How much is in a directory."""
        system, place = self._file(*parts)
        return int(system.getContentSummary(place).getLength())

    def changed_ms(self, *parts: str) -> int:
        """When a file or directory was changed last, epoch ms by the file system's clock."""
        system, place = self._file(*parts)
        return int(system.getFileStatus(place).getModificationTime())

    def exists(self, *parts: str) -> bool:
        """Whether there is something at this place."""
        system, place = self._file(*parts)
        return bool(system.exists(place))

    def names(self, *parts: str) -> Iterator[str]:
        """Names of all that stands in a directory; none where there is no such directory."""
        system, place = self._file(*parts)
        if system.exists(place):
            for status in system.listStatus(place):
                yield str(status.getPath().getName())

    def text(self, *parts: str) -> str:
        """A small text file."""
        rows = self.spark.read.text(self.path(*parts), wholetext=True).collect()
        return "".join(row.value for row in rows)

    def write_text(self, text: str, *parts: str) -> None:
        """A small text file, whole or not there: renamed into place."""
        system, place = self._file(*parts)
        draft = self._file(*parts[:-1], f".{parts[-1]}.draft")[1]
        stream = system.create(draft, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        system.delete(place, False)
        system.rename(draft, place)

    def remove(self, *parts: str) -> None:
        """Delete a file, or a directory with all that is in it, if it is there."""
        system, place = self._file(*parts)
        system.delete(place, True)

    def remove_before(self, table: str, batch: int) -> None:
        """Delete all batches before this one, also what is left of one that was half deleted."""
        for name in list(self.names(table)):
            if (match := _BATCH.fullmatch(name)) and int(match[1]) < batch:
                self.remove(table, name)

    def _file(self, *parts: str) -> tuple[Any, Any]:
        jvm: Any = self.spark._jvm
        context: Any = self.spark._jsc
        place = jvm.org.apache.hadoop.fs.Path(self.path(*parts))
        return place.getFileSystem(context.hadoopConfiguration()), place
