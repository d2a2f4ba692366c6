"""What annotations are made by: labels, heads, clusters, captions, words in pictures, and others."""
