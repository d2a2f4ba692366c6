"""Converts an ONNX graph to int8, and compares its vectors and speed with those of float32."""

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from embedder.models.converted import MIN_AGREEMENT, load_graph

_MIN_SPEEDUP = 1.5
"""For precision auto. Where int8 helps, it is 2.3 times as fast as float32; for a small model that gains nothing, 1.2
was once measured on a busy machine."""
_CONSTANTS: dict[str, NDArray[Any]] = {
    "int8_levels": np.array(127, np.float32),
    "int8_one": np.array(1, np.float32),
    "int8_middle": np.array(128, np.uint8),
    "int8_min_scale": np.array(1e-9, np.float32),
    "int8_columns": np.array([-1], np.int64),
}
_BATCH_SIZE = 4
_PROBE_SIDE = 64  # rows, columns and depth of the product that shows whether sums saturate


def to_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that multiplies by constant weights in integers, symmetric about zero: weights have a scale for each
    column, activations one for each row, computed at run time (Dettmers et al. 2022, LLM.int8(), section 3).

    ONNX Runtime's own dynamic quantization has one scale for all rows, so a vector would depend on the other pictures
    of its batch. Its 8-bit MatMulNBits does not, but was a third slower for ViT-B/32.

    Weights are signed if this processor multiplies those exactly (VNNI), otherwise unsigned with an offset of 128: the
    same integers, somewhat slower.
    """
    signed = _signed_is_exact()
    zeros = ["int8_middle"] if signed else ["int8_middle", "int8_middle"]
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    weights = {tensor.name: tensor for tensor in graph.initializer}
    quantized = dict(_CONSTANTS)
    nodes: list[NodeProto] = []
    done: set[str] = set()  # several products may share activations
    for node in graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            nodes.append(node)
            continue
        activations, name = node.input[0], node.output[0]
        floats = numpy_helper.to_array(weights[node.input[1]]).astype(np.float32)
        scale = np.maximum(np.abs(floats).max(axis=0) / 127, 1e-30)
        levels = np.rint(floats / scale)
        quantized[f"{name}_weights"] = levels.astype(np.int8) if signed else (levels + 128).astype(np.uint8)
        quantized[f"{name}_scale"] = scale / 127
        if activations not in done:
            nodes.extend(_quantize_rows(activations))
            done.add(activations)
        inputs = [f"{activations}_uint8", f"{name}_weights", *zeros]
        nodes.append(helper.make_node("MatMulInteger", inputs, [f"{name}_int32"]))
        nodes.extend(_dequantize(activations, name))
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    tensors = [tensor for tensor in graph.initializer if tensor.name in used]
    tensors += [numpy_helper.from_array(array, name) for name, array in quantized.items()]
    del graph.initializer[:]
    graph.initializer.extend(tensors)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def compare(folder: Path, name: str, rows: NDArray[Any]) -> tuple[float, float]:
    """The lowest cosine between the vectors of int8 and float32, and how many times as fast int8 is."""
    graphs = [load_graph(folder / precision / f"{name}.onnx", None) for precision in ("fp32", "int8")]
    seconds: list[list[float]] = [[], []]
    vectors: list[list[NDArray[np.float32]]] = [[], []]
    for start in range(0, len(rows), _BATCH_SIZE):
        for number, graph in enumerate(graphs):  # alternating, so that other load on the machine slows both
            started = time.perf_counter()
            vectors[number].append(graph(rows[start : start + _BATCH_SIZE]))
            seconds[number].append(time.perf_counter() - started)
    expected, got = (_unit(np.concatenate(parts)) for parts in vectors)
    return float((expected * got).sum(axis=1).min()), min(seconds[0]) / min(seconds[1])


def prefers_int8(agreement: float, speedup: float) -> bool:
    """Whether precision auto uses int8: the vectors agree with float32's, and it is fast enough."""
    return agreement >= MIN_AGREEMENT and speedup >= _MIN_SPEEDUP


def _quantize_rows(name: str) -> Iterator[NodeProto]:
    """To uint8, offset by 128: processors multiply unsigned by signed. `{name}_bound` is a row's largest magnitude."""
    yield helper.make_node("Abs", [name], [f"{name}_abs"])
    yield helper.make_node("ReduceMax", [f"{name}_abs", "int8_columns"], [f"{name}_max"], keepdims=1)
    yield helper.make_node("Max", [f"{name}_max", "int8_min_scale"], [f"{name}_bound"])
    yield helper.make_node("Div", ["int8_levels", f"{name}_bound"], [f"{name}_factor"])
    yield helper.make_node("Mul", [name, f"{name}_factor"], [f"{name}_scaled"])
    yield helper.make_node("QuantizeLinear", [f"{name}_scaled", "int8_one", "int8_middle"], [f"{name}_uint8"])


def _dequantize(activations: str, name: str) -> Iterator[NodeProto]:
    yield helper.make_node("Cast", [f"{name}_int32"], [f"{name}_whole"], to=TensorProto.FLOAT)
    yield helper.make_node("Mul", [f"{name}_whole", f"{name}_scale"], [f"{name}_column"])
    yield helper.make_node("Mul", [f"{name}_column", f"{activations}_bound"], [name])


@cache
def _signed_is_exact() -> bool:
    """Whether this processor multiplies unsigned by signed integers exactly, tested with the largest sum of products:
    with only AVX2, two products are added in 16 bits.
    """
    shape = [_PROBE_SIDE, _PROBE_SIDE]
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "weights"], ["y"])],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, shape)],
        [numpy_helper.from_array(np.full(shape, 127, np.int8), "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (product,) = session.run(None, {"x": np.full(shape, 255, np.uint8)})
    return bool((product == 255 * 127 * _PROBE_SIDE).all())


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)  # type: ignore[no-any-return]
