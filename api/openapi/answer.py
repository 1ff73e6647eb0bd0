"""The base of models of answers, and the place of a record."""

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """An answer, which may have more fields."""

    model_config = ConfigDict(extra="allow")


class Place(Answer):
    """Where a record lies in its topic."""

    topic: str
    partition: int
    offset: int
