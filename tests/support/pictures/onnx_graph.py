"""Writes graphs in ONNX by hand, as nothing that is installed does."""

from typing import Any

import numpy as np
import numpy.typing as npt

_FLOAT = 1


def one_layer(weight: npt.NDArray[np.float32], rows: int | str = "n") -> bytes:
    """A graph from `(rows, dim)` to `sigmoid(x @ weight.T)`, `(rows, outputs)`."""
    outputs, dim = weight.shape
    transposed = np.ascontiguousarray(weight.T)
    tensor = _message((1, dim), (1, outputs), (2, _FLOAT), (8, "w"), (9, transposed.tobytes()))
    nodes = [
        _message((1, "x"), (1, "w"), (2, "z"), (4, "MatMul")),
        _message((1, "z"), (2, "y"), (4, "Sigmoid")),
    ]
    ends = (11, _value("x", rows, dim)), (12, _value("y", rows, outputs))
    graph = _message(*((1, node) for node in nodes), (2, "head"), (5, tensor), *ends)
    return _message((1, 8), (7, graph), (8, _message((1, ""), (2, 13))))


def _value(name: str, *shape: int | str) -> bytes:
    dims = [(1, _message((2, each) if isinstance(each, str) else (1, each))) for each in shape]
    return _message((1, name), (2, _message((1, _message((1, _FLOAT), (2, _message(*dims)))))))


def _message(*fields: tuple[int, Any]) -> bytes:
    """A protobuf message: whole numbers as varints, all else with its length."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(_varint(number << 3) + _varint(value))
        else:
            data = value.encode() if isinstance(value, str) else value
            parts.append(_varint(number << 3 | 2) + _varint(len(data)) + data)
    return b"".join(parts)


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
