from .bundle import export_bundle
from .content import Content
from .errors import ExportError
from .gate import Evidence, Gate, PairedGate, Verdict
from .newest import export

__all__ = ["Content", "Evidence", "ExportError", "Gate", "PairedGate", "Verdict", "export", "export_bundle"]
