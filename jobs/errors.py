"""Errors of the package.

JobError
├── UsageError            options that contradict each other or make no sense
│   └── RolledBackColumnsError  computed columns would continue those that a rollback took back
├── SpecError             a job's file that cannot be read, or is invalid
├── SourceError           the source of images is missing, empty or unreadable
│   ├── EmptySourceError  it holds no images, or is a prefix of a bucket without objects
│   └── NotAListError     a table without paths or URLs of images
├── TooManyMissingError   more images are gone, or would be replaced by another source's, than `max_missing` allows;
│                         nothing was changed
├── TooManyRejectsError   more images rejected than `max_reject_rate` allows; the run stays unpublished, and is kept
├── OtherModelError       the collection holds another model's vectors
└── RayStartError         Ray did not start on this machine, which may be too busy; the same command may succeed later
"""


class JobError(Exception):
    """Base of everything that this package raises on purpose."""


class UsageError(JobError): ...


class RolledBackColumnsError(UsageError): ...


class SpecError(JobError): ...


class SourceError(JobError): ...


class EmptySourceError(SourceError): ...


class NotAListError(SourceError): ...


class TooManyMissingError(JobError): ...


class TooManyRejectsError(JobError): ...


class OtherModelError(JobError): ...


class RayStartError(JobError): ...
