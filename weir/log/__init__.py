"""Generated code of the log as Protocol Buffers."""
