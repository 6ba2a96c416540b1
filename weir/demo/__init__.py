"""The demo: a generated log, its replay, and the tour that `weir up --demo` ends with."""
