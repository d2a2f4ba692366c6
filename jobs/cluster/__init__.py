"""Ray: started on this machine, or joined.

The driver's packages are copied to the workers of a cluster (`py_modules`), ahead of any Likeness in their image, so
both ends agree. `Pool.fitting` counts, node by node, how many actors have room: Ray would wait for ever for resources
that no node has.
"""
