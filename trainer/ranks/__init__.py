"""Communication between the ranks of a run: process group, collectives, shared memory, and leaving nodes."""
