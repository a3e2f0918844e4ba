"""The job of the demonstration. Its workers are started as ``brooq-sa worker brooq_sa.demo.jobs:DemoJob``."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from brooq_sa import Claim, JobBase

from .models import PREFIX, Base, Parsed


class DemoJob(JobBase):
    metadata = Base.metadata
    table_name = f"{PREFIX}job"


class ParseModule(DemoJob, topic="module.parse", backoff_base="200ms", backoff_max="200ms"):
    """Parse a source file, and write a row about it together with the outcome."""

    module_id: int
    path: str
    fails_once: bool = False

    def run(self, claim: Claim) -> None:
        if self.fails_once and claim.attempt == 1:
            raise RuntimeError("This job fails once, to show that it is tried again.")
        source = Path(self.path).read_bytes()
        claim.session.add(self._findings(source, claim))

    def _findings(self, source: bytes, claim: Claim) -> Parsed:
        kinds = Counter(type(node) for node in ast.walk(ast.parse(source)))
        return Parsed(
            module_id=self.module_id,
            lines=source.count(b"\n"),
            functions=kinds[ast.FunctionDef] + kinds[ast.AsyncFunctionDef],
            classes=kinds[ast.ClassDef],
            imports=kinds[ast.Import] + kinds[ast.ImportFrom],
            worker=claim.worker,
            attempt=claim.attempt,
        )
