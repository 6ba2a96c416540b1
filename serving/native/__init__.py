"""The Python side of the compiled front (`native/`), which answers plain requests and passes all others on."""
