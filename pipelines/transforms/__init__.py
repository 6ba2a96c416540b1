"""The transforms of the pipeline, one idea each; `weir.pipelines.transforms.chain` connects them."""

__all__: list[str] = []
