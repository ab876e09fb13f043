"""Building image jobs on the main node: a plan goes in, resolved records come out. Pure: the same
plan gives the same records, byte for byte, on any machine."""

from corral.pipelines.plan import BatchPlan, parse
from corral.pipelines.records import Built, build

__all__ = ["BatchPlan", "Built", "build", "parse"]
