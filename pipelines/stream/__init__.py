"""The unbounded driver: the same transforms under an engine that never ends (docs/windows.md, "Under an engine")."""

__all__: list[str] = []
