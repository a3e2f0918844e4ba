"""The demonstration behind ``brooq-sa demo``: real work on real input, while a worker is killed in the middle.

For every module of the running Python's standard library a row and its job are added in one transaction; worker
processes parse the sources and write what they find with the outcome of their jobs. `demonstration` tells the story.
"""

from __future__ import annotations
