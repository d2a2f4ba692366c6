"""Errors of collections and indexes.

CollectionError
├── NotACollectionError      the location is missing, is a file, or holds other files than a collection's
├── EmptyCollectionError     nothing is embedded yet, or there is no index version to search
├── ModelMismatchError       one index would hold vectors of two models
├── DamagedRunError          a file of a run is missing, unreadable or differs from its manifest; see `file`
├── DamagedVersionError      a file of an index version is missing, truncated or altered; see `file`
├── RecallTooLowError        a version is complete but not live, because its recall is below its target
├── RolledBackError          a version is complete but was rolled back, and goes live only if it is promoted
├── OvertakenError           another version was made live meanwhile, and stays live
├── LeaseError               another job writes to the collection: try again later
│   ├── LeaseHeldError       the other job was first; nothing was done
│   └── LeaseLostError       the other job took over because this one was silent for too long; nothing more is committed
├── UnsafeFileError          a path of a collection leads out of its folder, or has a link or a pipe (also a ValueError)
├── UnreachableError         a bucket did not answer, or refused; its content is unchanged (also an OSError)
├── FactoryError             a faiss factory string that cannot be built, or a memory limit that no index meets
├── ShardsLostError          (`index.search.sharded_index`) searchers that hold a part of the index do not answer
└── QueryError               a query with an invalid shape or value
    ├── OptionError          an invalid option of a search, such as k
    └── FilterError          a filter with an unknown column or operator, or a value of the wrong type
"""

import errno

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's errors for a file without room: the disk is full, a quota, or the maximum file size."""
PASSING = (*DISK_FULL, errno.EIO, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ETIMEDOUT)
"""The system's errors that pass, or that somebody can mend: what a file holds is not to blame."""


class CollectionError(Exception):
    """Base of every error that `index` raises on purpose. The command line exits with its `exit_code`, or 2."""


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


class RecallTooLowError(CollectionError):
    exit_code = 1


class RolledBackError(CollectionError): ...


class OvertakenError(CollectionError):
    exit_code = 75  # it may succeed later, as in sysexits


class LeaseError(CollectionError):
    exit_code = 75  # it may succeed later, as in sysexits


class LeaseHeldError(LeaseError): ...


class LeaseLostError(LeaseError): ...


class UnsafeFileError(CollectionError, ValueError):
    """A path leads out of a collection's folder, or is not a regular file. Code that reads records expects a
    ValueError.
    """


class UnreachableError(CollectionError, OSError):
    """A bucket did not answer, or refused; its content is unchanged. Code that reads files expects an OSError."""


class FactoryError(CollectionError): ...


class QueryError(CollectionError): ...


class OptionError(QueryError):
    """An option of a search is invalid: its `name`, what it `got`, and what was `expected`."""

    # Defaults keep the exception picklable, as above.
    def __init__(self, name: str, got: object = None, expected: str = "") -> None:
        super().__init__(f"{name} is {got!r}: expected {expected}" if expected else name)
        self.name = name
        self.got = got
        self.expected = expected


class FilterError(QueryError):
    """A filter has an unknown column or operator, or a value of the wrong type: what it `got`, what was `expected`."""

    # Defaults keep the exception picklable, as above.
    def __init__(self, message: str, expected: str = "", got: str = "") -> None:
        super().__init__(message)
        self.expected = expected
        self.got = got
