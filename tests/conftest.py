"""What holds for every test: a Ray that asks for no token and reports nothing to anyone."""

import os

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
