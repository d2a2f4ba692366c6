"""What there is to embed, as one Arrow table with a row per image.

A listing begins with the columns of `LISTING`: an id (a path below the source's root, or that of a list), a `uri` that
names the bytes by itself (a member of a tar or a cell of a Parquet file by a fragment, see `embedder.fetch`), and what
tells whether the image has changed. Every further column is metadata. A repeated id, a line, a tar, a list or a
subfolder that cannot be read is a row with its reason, and becomes a reject without being fetched. The images in what
cannot be read are unknown rather than gone: while there is any such part, nothing is deleted.
"""
