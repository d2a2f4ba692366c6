"""Jobs: a source of images becomes a collection that can be searched."""
