"""The user tower at serving time: an ONNX graph from a history's item embeddings to one vector."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime

__all__ = ["Tower"]

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
        Where the bytes are no model, or one with other inputs and outputs.
    """

    def __init__(self, graph: bytes, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        try:
            self._session: Any = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime errors share no narrower base class
            raise ValueError(f"ONNX Runtime cannot read it: {error}") from error
        inputs = tuple(sorted(node.name for node in self._session.get_inputs()))
        outputs = [node.name for node in self._session.get_outputs()]
        if inputs != _INPUTS or _OUTPUT not in outputs:
            raise ValueError(f"has inputs {inputs} and outputs {outputs}, expected {_INPUTS} and {_OUTPUT!r}")

    def __call__(self, history: Floats, mask: Bool) -> Floats:
        """Return the users' vectors, (batch, dimension); raises what ONNX Runtime raises."""
        vectors: Floats = self._session.run([_OUTPUT], {"history": history, "mask": mask})[0]
        return vectors
