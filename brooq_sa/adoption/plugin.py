"""The plugin that Alembic loads of its own accord, through the entry point group ``alembic.plugins``.

It makes ``alembic revision --autogenerate`` and ``alembic check`` leave the queue's tables alone. The entry point is
named ``alembic.autogenerate.brooq_sa``, since an env.py that says nothing of ``autogenerate_plugins`` has those named
``alembic.autogenerate.*``; ``~alembic.autogenerate.brooq_sa`` in that list turns it off.

Alembic loads plugins when it is imported, so this module imports next to nothing, and nothing of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

NAME = "alembic.autogenerate.brooq_sa"


def setup(plugin: Any) -> None:
    """What Alembic calls with a `alembic.runtime.plugins.Plugin`."""
    from alembic.util import DispatchPriority

    # Last, when everybody else has said what they want changed.
    plugin.add_autogenerate_comparator(_leave_alone, "autogenerate", "brooq_sa", priority=DispatchPriority.LAST)


def _leave_alone(context: Any, upgrade_ops: Any) -> Any:
    from alembic.util import PriorityDispatchResult

    from .ours import leave_alone

    leave_alone(context, upgrade_ops)
    return PriorityDispatchResult.CONTINUE


class _Iterable(ModuleType):
    """A module that has itself in it.

    Alembic up to 1.20.0 takes what an entry point names for a collection of modules, and breaks at import over one
    that cannot be iterated; later ones want the module, and warn of a collection.
    """

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


sys.modules[__name__].__class__ = _Iterable
