"""Proves the single node on a real cluster: ``make cluster-check`` (docs/deploy.md).

`kubectl` talks to the cluster of the current context, `checks` says what must hold there.
"""
