from .bundle import export, export_bundle
from .content import Content
from .gate import Evidence, Gate, PairedGate, Verdict
from .onnx_models import ExportError

__all__ = ["Content", "Evidence", "ExportError", "Gate", "PairedGate", "Verdict", "export", "export_bundle"]
