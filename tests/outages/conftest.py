"""A PostgreSQL server that may be stopped and killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.servers import Servers
from outages.place import Place


@pytest.fixture(scope="session")
def _servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    with Servers(str(request.config.getoption("--pg"))) as servers:
        yield servers


@pytest.fixture
def place(_servers: Servers) -> Iterator[Place]:
    """An empty job table on a server that this folder's tests have for themselves."""
    made = Place(_servers)
    made.begin()
    yield made
    made.end()
