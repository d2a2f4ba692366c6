"""The settings of an index."""

from pydantic import Field

from index.collection.records.bounds import Name
from index.collection.records.record import Record
from index.queries import QueryKind


class IndexSettings(Record):
    """The settings of an index; updates keep them. No version whose recall@10 is below `target_recall` goes live.

    An exact scan is preferred if it takes at most `latency_ms`. `max_memory` is in bytes for all segments. `factory`, a
    faiss factory string, overrides the choice. `queries` is the digest of the texts that recall is measured with; None:
    captions chosen for the collection. `words` are the columns of text whose words are indexed; None: all of them.
    """

    target_recall: float = Field(0.99, gt=0, le=1)
    latency_ms: float = Field(5.0, gt=0, le=1e6)
    max_memory: int | None = Field(None, gt=0)
    factory: Name | None = None
    segment_rows: int = Field(1_000_000, ge=1)
    queries: str | None = None
    words: tuple[Name, ...] | None = None

    def target_of(self, kind: QueryKind) -> float:
        """The recall@10 that queries of a kind must reach. Texts may miss twice as many as images: all images are
        nearly equally far from a text, so the missed ones are hardly better than those returned instead.
        """
        return max(0.0, 2 * self.target_recall - 1) if kind == "text" else self.target_recall
