"""Jobs described in files, and their executions.

An execution re-embeds, prunes, records its outcome in the collection (the next one may be on another machine) and
notifies. The scheduler starts a separate process for each, so memory is freed at the end; if the kernel kills it, the
scheduler records that. Metrics go to a file for node_exporter, which saves running a Pushgateway.
"""
