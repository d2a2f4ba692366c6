"""This machine's cache: files of buckets, and which files of collections were checked against their digests."""
