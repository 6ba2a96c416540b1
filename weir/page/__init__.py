"""The page: what the stages do, as they do it, in a browser. `server` serves it, from the process of `weir monitor`."""
