"""The compiled front (`native/`): it answers plain requests from batches of columns, and passes all others on."""
