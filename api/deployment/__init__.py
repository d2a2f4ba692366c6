"""The app on Ray Serve, with as few hops behind the proxy as the load allows.

A replica holds the model and the index. With `embedders` the model has its own replicas, which get the GPUs, and
`RemoteEmbedder` is an Embedder like any other; it splits a batch into calls of eight. With `shards` each shard of a
large index has its own replicas. Calls name their model or version, and a replica holds the last two, so queries go on
during a change. If a replica dies, its calls are repeated at another one.

Serve passes twice the limit of requests to a replica, so that the app itself refuses some, with a problem document.
"""
