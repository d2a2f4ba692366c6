"""What there is to embed, as one table with a row per image.

Ids are paths below the source's root, or those of a list. A repeated id, a line, a tar, a list or a subfolder that
cannot be read is a row with its reason, and becomes a reject without being fetched. The images in what cannot be read
are unknown rather than gone: while there is any such part, nothing is deleted.
"""
