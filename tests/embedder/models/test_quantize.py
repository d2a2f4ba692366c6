"""A graph in 8-bit integers: products of the largest numbers, which saturate at 16 bits on some processors."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from embedder.models.quantize import to_int8


def test_the_largest_numbers_are_multiplied_exactly() -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 64])],
        [numpy_helper.from_array(np.full((256, 64), 0.5, np.float32), "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session = onnxruntime.InferenceSession(to_int8(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (product,) = session.run(None, {"x": np.full((3, 256), 2, np.float32)})
    np.testing.assert_allclose(product, 256.0, rtol=1e-6)
