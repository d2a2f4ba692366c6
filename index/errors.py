"""What can go wrong with a collection or an index.

CollectionError
├── NotACollectionError      the location is missing, is a file, or has files that are not a collection's
├── EmptyCollectionError     nothing is embedded yet, or no index version is there to search
├── ModelMismatchError       vectors of two models would meet in one index
├── DamagedRunError          a file of a run is missing, unreadable or not what its manifest says: `file`
├── DamagedVersionError      a file of an index version is missing, truncated or altered: `file`
├── RecallTooLowError        a version's recall is below its target: it is complete, and not live
├── RolledBackError          a version was rolled back: it is complete, and does not go live unless it is promoted
├── OvertakenError           somebody made another version live meanwhile: that stays
├── LeaseError               another job writes to the collection: try again later
│   ├── LeaseHeldError       it was there first: nothing was done
│   └── LeaseLostError       it took over, as this job did not renew it in time: nothing more is committed
├── UnreachableError         a bucket did not answer, or refused: what is in it is as it was (an OSError too)
├── FactoryError             a faiss factory string that cannot be built here, or budgets that nothing fits
├── ShardsLostError          (`index.search.sharded_index`) searchers that hold a part of the index do not answer
└── QueryError               a query that cannot be answered: its shape, its values or its k
    └── FilterError          a filter with an unknown column or operator, or a value of the wrong type
"""

import errno

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's errors for a file without room: the disk is full, a quota, or the maximum file size."""


class CollectionError(Exception):
    """Base of every error that `index` raises on purpose."""


class NotACollectionError(CollectionError): ...


class EmptyCollectionError(CollectionError): ...


class ModelMismatchError(CollectionError): ...


class _DamagedFileError(CollectionError):
    """`file` is the path of the damaged file below the collection."""

    # A default keeps the exception picklable: it is rebuilt from its message, then from its attributes.
    def __init__(self, message: str, file: str = "") -> None:
        super().__init__(message)
        self.file = file


class DamagedRunError(_DamagedFileError): ...


class DamagedVersionError(_DamagedFileError): ...


class RecallTooLowError(CollectionError): ...


class RolledBackError(CollectionError): ...


class OvertakenError(CollectionError): ...


class LeaseError(CollectionError): ...


class LeaseHeldError(LeaseError): ...


class LeaseLostError(LeaseError): ...


class UnreachableError(CollectionError, OSError):
    """A bucket did not answer, or refused: what is in it is as it was. Whoever reads files expects an OSError."""


class FactoryError(CollectionError): ...


class QueryError(CollectionError): ...


class FilterError(QueryError):
    """A filter with an unknown column or operator, or a value of the wrong type: what was `expected`, what it `got`."""

    # Defaults keep the exception picklable, as above.
    def __init__(self, message: str, expected: str = "", got: str = "") -> None:
        super().__init__(message)
        self.expected = expected
        self.got = got
