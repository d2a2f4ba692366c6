"""Works out what is left to do: the listing, minus what is already in the collection.

Resuming after a crash and embedding what is new are the same subtraction. A row's source is that of its run. An image
is unchanged if its live row says so (`unchanged_mask`). Rejects are tried again if that may help: files that were not
found or could not be read (a lost disk, an expired token), but not pages that do not exist on their host.

No vector is computed twice (`reuse.py`): images are looked up among all rows that the model has written to the
collection, by id if nothing indicates a change, else by the hash of their bytes.

`tests/jobs/planning/reference_plan.py` says in plain Python what happens to each image, and `decisions.py` beside it
has the reasons.
"""
