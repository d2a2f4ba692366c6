"""Logs and metrics.

Facts about a request are noted where they are learned (`log.py`, a context variable). The outermost
middleware turns them into metrics and one log line when the request ends, so inner code depends on neither. Labels are
route templates and `http_4xx`: no caller can create series without end.
"""
