"""pylair's Python half: what runs inside a worker, a visited app or a test run. Standard library only.

The daemon embeds these files and loads them from memory as the package `_pylair`; installed from a wheel the same files are `pylair`.
"""

__version__ = "0.1.0"
