"""The user tower: runs an ONNX graph that maps the item embeddings of a history to a user vector."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime

__all__ = ["Tower", "session"]

Floats = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

_INPUTS: Final = ("history", "mask")
_OUTPUT: Final = "user"


class Tower:
    """Runs ``tower.onnx``.

    Parameters
    ----------
    graph
        The serialised model: inputs ``history`` float32 (batch, length, dimension) and ``mask`` bool
        (batch, length), output ``user`` float32 (batch, dimension).
    threads
        Threads of one run.

    Raises
    ------
    ValueError
        If `graph` is not a model, or has other inputs or outputs.
    """

    def __init__(self, graph: bytes, threads: int = 1) -> None:
        self._session: Any = session(graph, threads, _INPUTS, _OUTPUT)

    def __call__(self, history: Floats, mask: Bool) -> Floats:
        """Return the users' vectors, (batch, dimension); raises what ONNX Runtime raises."""
        vectors: Floats = self._session.run([_OUTPUT], {"history": history, "mask": mask})[0]
        return vectors


def session(graph: bytes, threads: int, inputs: tuple[str, ...], output: str) -> Any:
    """Load an ONNX model that has these inputs (sorted by name) and this output; raises `ValueError` for others."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    try:
        found = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime errors share no narrower base class
        raise ValueError(f"ONNX Runtime cannot read it: {error}") from error
    names, outputs = tuple(sorted(node.name for node in found.get_inputs())), [one.name for one in found.get_outputs()]
    if names != inputs or output not in outputs:
        raise ValueError(f"has inputs {names} and outputs {outputs}, expected {inputs} and {output!r}")
    return found
