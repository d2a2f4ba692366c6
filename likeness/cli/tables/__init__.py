"""What commands print about a collection, its index and a job: as facts for JSON, and as tables."""
