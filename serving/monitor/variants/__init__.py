"""Compares the challenger with the champion: `paired` asks both about the same events, `clicks` joins their lists.

`comparing` counts what both find out, in the store; `weir.contracts.comparison` has the verdict.
"""
