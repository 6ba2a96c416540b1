"""Parts of every long-running process: listeners, metrics, stop signals, supervision. Every package may import it."""
