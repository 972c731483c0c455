"""Sixty small faults in the package, and which tests find them: ``python -m tests.mutants``.

Thirty are drawn by a seeded script (``draw``), thirty undo a fix of the past. A test suite that
finds no fewer of them than before has lost nothing that they can show.
"""
