"""Parts of every long-running process: listeners, metrics, stop signals, supervision. Every stage may import it."""
