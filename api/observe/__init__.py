"""Logs and metrics.

Code adds facts about the current request to a record in a context variable (`log.py`). When the request ends, the
outermost middleware turns the record into metrics and one log line, so other code depends on neither. Labels are route
templates and classes such as `http_4xx`, so callers cannot create unlimited series.
"""
