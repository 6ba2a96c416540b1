"""The unbounded driver: the same transforms as an endless Flink job (docs/windows.md, "Under an engine")."""

__all__: list[str] = []
