"""How a job ends when it can't do what it was asked to."""


class PipelineError(Exception):
    """An expected end; the text says what is wrong and what to do."""


class PipelineUnavailable(PipelineError):
    """Something that every job needs is not installed."""


class WarehouseConflict(PipelineError):
    """The tables and the job's memory of them don't belong together."""


class Unanswered(PipelineError):
    """Nobody knows what Kafka has of a slice. The next run of the job reads that in the topics."""
