"""A handler apart from its job class."""

from __future__ import annotations

import os

from apps.isolated import Registered, note
from brooq_sa import Claim


@Registered.handler
def handle(job: Registered, claim: Claim) -> None:
    note(job.path, os.getpid())
