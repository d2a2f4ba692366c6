"""The JSON files of a collection, each with a checksum of its own content, so that an altered one is refused."""
