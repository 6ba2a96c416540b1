"""The unbounded driver: the same transforms under an engine that never ends (docs/store.md, "Under an engine")."""

__all__: list[str] = []
