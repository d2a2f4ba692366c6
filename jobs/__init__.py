"""Jobs: turn a source of images into a searchable collection."""
