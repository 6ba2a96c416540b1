"""The Python side of the compiled front (`native/`), which answers plain requests and passes other calls to Python.

A plain request is a cheap Retrieve call without search parameters, filter, tag cap, pinned version or features.
"""
