"""A process that pulls jobs with `consume`, and begins again when the database is out of reach at the start."""

from __future__ import annotations

import signal
import sys
import time

from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError

from brooq_sa import Claim, consume, log
from chaos import ledger
from chaos.jobs import EFFECT, LEASE, PULLED, ChaosJob, chance, recorded
from databases import make_engine

STARTED = "consumer_started"
"""Written once it has reached the database."""


def run(url: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    log.configure(format="json")
    engine = make_engine(url)
    ledger.own()
    while True:
        try:
            with engine.connect():
                print(STARTED, flush=True)
            for claim in consume(
                engine, ChaosJob, [PULLED], lease=f"{LEASE:g}s", poll_interval="100ms", reaper_period="500ms"
            ):
                with claim as _:
                    _handle(claim)
        except DBAPIError as error:
            print(f"consumer begins again: {error}", flush=True)
            time.sleep(0.3)


def _handle(claim: Claim) -> None:
    with recorded(claim):
        if chance(claim).random() < 0.7:
            claim.session.execute(insert(EFFECT), {"job": claim.id, "attempt": claim.attempt, "worker": claim.worker})
        claim.should_stop.wait(chance(claim).choice([0.0, 0.0, 0.0, 0.1, 0.1, 0.2, LEASE * 1.2]))
