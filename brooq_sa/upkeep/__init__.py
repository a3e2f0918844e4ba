"""What keeps the table in order, inside every worker process."""

from .reaper import Reaper
from .retention import Retention
from .unknown import UnknownTopics
from .upkeep import Upkeep

__all__ = ["Reaper", "Retention", "UnknownTopics", "Upkeep"]
