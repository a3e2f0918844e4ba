"""What may be wrong with the queue's database, found by looking and without changing anything.

`examine` runs every check that applies. Each check is a function that looks, and yields what it finds; none at all is
good news, which has words of its own.
"""

from __future__ import annotations

from .examination import CHECKS, Check, examine
from .finding import Finding, Level
from .look import Look

__all__ = ["CHECKS", "Check", "Finding", "Level", "Look", "examine"]
