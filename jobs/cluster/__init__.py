"""Ray: started on this machine, or joined.

The driver's packages are copied to the workers of a cluster (`py_modules`) and take precedence over any Likeness in
their image, so both run the same code. `Pool.for_cluster` counts, node by node, how many actors fit, because Ray would
wait for ever for resources that no node has.
"""
