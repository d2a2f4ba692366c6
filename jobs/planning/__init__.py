"""What is left to do: the listing, less what is there.

Resuming after a crash and embedding what is new are the same subtraction. A row knows its source by its run. An image
is unchanged if its live row says so (`unchanged_mask`). Rejects are tried again if that may help: files that are not
found or refused (a lost disk, an expired token), but not pages that their host does not have.

A vector is never computed twice (`reuse.py`): images to do are looked for in everything that the model has written to
the collection, by id if nothing says that the image changed, else by the hash of its bytes.
"""
