"""Works out what happens to each image of a source, and why.

Resuming after a crash and embedding what is new are the same query (`plan_query.py`): each image is compared with the
rows of the collection, those of an unfinished run too, and gets an action: keep, copy, embed or refuse. Rejects are
tried again if that may help: files that were not found or could not be read (a lost disk, an expired token), but not
pages that do not exist on their host. No vector is computed twice: images are looked up among all rows that the model
has written to the collection, by id or address if nothing indicates a change, else by the hash of their bytes.

`decide.py` runs the query for the images of one source, and reads the pictures that it asks for. `changes.py` has it
run for the listed source, and those that have rows of another model; `known_rows.py` writes what needs no model. In
`tests/jobs/planning/`, `reference_plan.py` says in plain Python what happens to each image, and `decisions.py` has the
reasons.
"""
