"""Unit costs of each kind of work, for planning."""

Costs = dict[tuple[str, str], dict[str, float | str]]
"""By what is done, and the unit: the cost of each variant, under "" if there is only one."""
