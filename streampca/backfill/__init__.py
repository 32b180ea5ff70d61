"""Learns the past of a topic from files: a backfill is one more fold, which is merged into every model.

`fold_batches` and `merge` know no engine; `engines` runs them on processes, Dask or Spark.
"""

from streampca.backfill.folding import BackfillPlan, fold_batches, merge

__all__ = ["BackfillPlan", "fold_batches", "merge"]
