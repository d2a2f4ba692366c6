"""Lists the images of a source as one Arrow table with a row per image.

A listing begins with the columns of `LISTING`: an id (a path below the source's root, or an id from a list), a `uri`
that alone locates the bytes (with a fragment for a member of a tar or a cell of a Parquet file, see `embedder.fetch`),
and what shows whether the image has changed. All other columns are metadata. A repeated id, or an unreadable line, tar,
list or subfolder, is a row with a reason, and becomes a reject without being fetched. Images in an unreadable part of
the source are unknown rather than gone, so nothing is deleted while there is such a part.
"""
