"""The unbounded driver: the same transforms as an endless Flink job (docs/store.md, "Under an engine")."""

__all__: list[str] = []
