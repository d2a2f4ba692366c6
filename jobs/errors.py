"""Errors of the package.

JobError
├── UsageError            options that contradict each other or make no sense
├── SourceError           the source of images is missing, empty or unreadable
├── TooManyRejectsError   more images rejected than allowed; the run stays unpublished
└── OtherModelError       the collection holds another model's vectors
"""


class JobError(Exception):
    """Base of everything that this package raises on purpose."""


class UsageError(JobError):
    """Options contradict each other, or one has a value that makes no sense."""


class SourceError(JobError):
    """The source of images is missing, empty or cannot be read."""


class TooManyRejectsError(JobError):
    """More images were rejected than `max_reject_rate` allows. What was embedded is kept in the unfinished run."""


class OtherModelError(JobError):
    """The collection was embedded with another model."""
