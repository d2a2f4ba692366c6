"""From an HTTP request to ranked matches."""
