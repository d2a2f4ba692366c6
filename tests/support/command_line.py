"""Runs the command `likeness` in this process."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from likeness.cli import app


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that runs the command. An exception that it does not handle fails the test."""

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["likeness", *map(str, arguments)])
        code: Any = 0
        try:
            app.main()
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        return Result(int(code or 0), printed.out, printed.err)

    return call
