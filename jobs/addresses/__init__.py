"""Looks again at the web addresses of a source: which are due (`check_listing.py`), visiting them politely
(`visit_addresses.py`), and recording what was found (`record_checks.py`).
"""
