"""What can go wrong with a collection or an index.

CollectionError
├── NotACollectionError      the location is missing, is a file, or holds files that are not a collection's
├── EmptyCollectionError     nothing is embedded yet, or no index version is there to search
├── ModelMismatchError       vectors of two models would meet in one index
├── DamagedRunError          a file of a run is missing, unreadable or not what its manifest says
├── DamagedVersionError      a file of an index version is missing, truncated or altered
├── RecallTooLowError        a version answers worse than was asked for: it is there, and not live
├── RolledBackError          a version that was rolled back: nothing goes back to it
├── OvertakenError           somebody made another version live meanwhile: that stays
├── LeaseError               another job writes to the collection
│   ├── LeaseHeldError       it was there first: nothing was done
│   └── LeaseLostError       it has taken over: nothing more is committed
├── UnreachableError         a bucket did not answer, or refused: what is in it is as it was (an OSError too)
├── FactoryError             a faiss factory string that cannot be built here, or budgets that nothing fits
├── ShardsLostError          (`index.search.sharded_index`) searchers that hold a part of the index do not answer
└── QueryError               a query that cannot be answered: its shape, its values or its k
    └── FilterError          a filter with an unknown column or operator, or a value of the wrong type
"""


class CollectionError(Exception):
    """Base of every error that `index` raises on purpose."""


class NotACollectionError(CollectionError):
    """The location is missing, is a file, or holds files that do not belong to a collection."""


class EmptyCollectionError(CollectionError):
    """Nothing is embedded yet, or no index version is there to search."""


class ModelMismatchError(CollectionError):
    """Vectors of two models would meet in one index."""


class _DamagedFileError(CollectionError):
    """`file` is the path of the damaged file below the collection."""

    # A default keeps the exception picklable: it is rebuilt from its message, then from its attributes.
    def __init__(self, message: str, file: str = "") -> None:
        super().__init__(message)
        self.file = file


class DamagedRunError(_DamagedFileError):
    """A file of a run is missing, unreadable or not what its manifest says."""


class DamagedVersionError(_DamagedFileError):
    """A file of an index version is missing, truncated or altered."""


class RecallTooLowError(CollectionError):
    """A version's recall is below its target: it is complete, but not live."""


class RolledBackError(CollectionError):
    """A version was rolled back: it is complete, but does not go live unless it is promoted again."""


class OvertakenError(CollectionError):
    """Somebody made another version live meanwhile: that stays."""


class LeaseError(CollectionError):
    """Another job is writing to the collection: try again later."""


class LeaseHeldError(LeaseError):
    """Another job holds the lease: nothing was done."""


class LeaseLostError(LeaseError):
    """Another job has taken the lease, since this one was silent for too long: nothing more is committed."""


class UnreachableError(CollectionError, OSError):
    """A bucket did not answer, or refused: what is in it is as it was. Whoever reads files expects an OSError."""


class FactoryError(CollectionError):
    """A faiss factory string that cannot be built here, or budgets that no kind of index fits."""


class QueryError(CollectionError):
    """A query that cannot be answered: its shape, its values or its k."""


class FilterError(QueryError):
    """A filter with an unknown column or operator, or a value of the wrong type: what was `expected`, what it `got`."""

    # Defaults keep the exception picklable, as above.
    def __init__(self, message: str, expected: str = "", got: str = "") -> None:
        super().__init__(message)
        self.expected = expected
        self.got = got
