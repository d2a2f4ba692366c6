"""The app on Ray Serve, as few hops behind the proxy as the load allows.

A replica holds the model and the index. With `embedders` the model has replicas of its own, with the GPUs, and
`RemoteEmbedder` is an Embedder like any other; a batch is split into calls of eight. With searchers the shards of a
large index have. Calls name their model or version, and a replica holds the last two, so queries go on during a change.
A call whose replica dies is made again elsewhere.

Serve lets twice the limit through to a replica, so that the app itself refuses, with a problem document.
"""
