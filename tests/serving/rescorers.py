"""A second phase whose scores are worked out here as well: a bilinear form that agrees with no index."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from weir.contracts import BundleFile, BundleLog, BundleManifest, Store


def form(dimension: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, 9]).standard_normal((dimension, dimension)).astype(np.float32)


def bilinear(weights: np.ndarray) -> bytes:
    """A scorer: user @ weights @ item."""
    nodes = [
        helper.make_node("Gather", ["items", "candidates"], ["chosen"]),
        helper.make_node("MatMul", ["user", "weights"], ["turned"]),
        helper.make_node("Unsqueeze", ["turned", "last"], ["column"]),
        helper.make_node("MatMul", ["chosen", "column"], ["products"]),
        helper.make_node("Squeeze", ["products", "last"], ["score"]),
    ]
    graph = helper.make_graph(
        nodes,
        "bilinear",
        [
            helper.make_tensor_value_info("user", TensorProto.FLOAT, ["batch", "dimension"]),
            helper.make_tensor_value_info("items", TensorProto.FLOAT, ["items", "dimension"]),
            helper.make_tensor_value_info("candidates", TensorProto.INT64, ["batch", "candidates"]),
        ],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch", "candidates"])],
        initializer=[
            numpy_helper.from_array(weights, "weights"),
            helper.make_tensor("last", TensorProto.INT64, [1], [2]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def with_scorer(store: Store, manifest: BundleManifest, candidates: int, scorer: bytes) -> BundleManifest:
    """Give a bundle a second phase, before anything is built on it."""
    entry = store.write(f"{manifest.folder}/{BundleFile.SCORER}", scorer)
    found = manifest.model_copy(update={"files": (*manifest.files, entry), "rescored": candidates})
    BundleLog(store).commit(found)
    return found
