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
    """Base of everything that this package raises on purpose. The command line exits with its `exit_code`, or 2."""


class UsageError(JobError): ...


class RolledBackColumnsError(UsageError): ...


class SpecError(JobError): ...


class SourceError(JobError): ...


class EmptySourceError(SourceError): ...


class NotAListError(SourceError): ...


class TooManyMissingError(JobError):
    exit_code = 3


class TooManyRejectsError(JobError):
    exit_code = 1


class OtherModelError(JobError): ...


class RayStartError(JobError):
    exit_code = 75  # it may succeed later, as in sysexits
