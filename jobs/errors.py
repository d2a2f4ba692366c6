"""Errors of the package.

JobError
├── UsageError            options that contradict each other or make no sense
├── SpecError             a job's file that cannot be read, or is not one
├── SourceError           the source of images is missing, empty or unreadable
│   └── EmptySourceError  it holds no images
├── TooManyMissingError   more images are gone from the source than allowed; nothing was changed
├── TooManyRejectsError   more images rejected than allowed; the run stays unpublished
├── OtherModelError       the collection holds another model's vectors
└── RayStartError         Ray did not start on this machine; the same command may succeed later
"""


class JobError(Exception):
    """Base of everything that this package raises on purpose."""


class UsageError(JobError):
    """Options contradict each other, or one has a value that makes no sense."""


class SpecError(JobError):
    """A job's file cannot be read, or its content is not valid."""


class SourceError(JobError):
    """The source of images is missing, empty or cannot be read."""


class EmptySourceError(SourceError):
    """The source exists but holds no images, or is a prefix of a bucket without objects."""


class TooManyMissingError(JobError):
    """More images are gone, or would be replaced by another source's, than `max_missing` allows. Nothing changed."""


class TooManyRejectsError(JobError):
    """More images were rejected than `max_reject_rate` allows. What was embedded is kept in the unfinished run."""


class OtherModelError(JobError):
    """The collection was embedded with another model."""


class RayStartError(JobError):
    """Ray did not start on this machine, which may be too busy: the same command may succeed later."""
