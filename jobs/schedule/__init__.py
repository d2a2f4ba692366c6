"""A job in a file, and its executions.

An execution re-embeds, prunes, records its outcome in the collection (the next one may be on another machine) and
notifies. It is a process of its own, which frees its memory; if the kernel kills it, the scheduler records that.
Metrics go to a file for node_exporter, one service less than a Pushgateway.
"""
