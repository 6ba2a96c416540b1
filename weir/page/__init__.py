"""The live web page about all stages; `server` serves it, in the process of `weir monitor`."""
