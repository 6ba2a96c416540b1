"""The transforms of the pipeline, one idea each; `pipelines.chain` puts them together."""

__all__: list[str] = []
