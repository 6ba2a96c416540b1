"""The transforms of the pipeline, one idea each; `weir.pipelines.transforms.chain` puts them together."""

__all__: list[str] = []
