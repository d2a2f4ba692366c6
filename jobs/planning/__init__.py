"""What is left to do: the listing, less what is there.

A row knows its source by its run. An image is unchanged if its live row says so (`unchanged_mask`); retryable rejects
are not. Files that are not found or refused (a lost disk, an expired token) are retryable, pages that their host does
not have are not.

A vector is never computed twice (`reuse.py`). Images to do are looked for in everything that the model has written to
the collection, live or not, committed or not: by id if nothing says that the image changed, else by the hash of its
bytes, which are read only if a known image has the same size.
"""
