"""Learns the past of a topic from files. A backfill is one more fold, which is merged into every model.

`fold_batches` and `merge` can run anywhere; `engines` runs them on processes of this machine, on Dask or on Spark.
"""

from streampca.backfill.folding import BackfillPlan, fold_batches, merge

__all__ = ["BackfillPlan", "fold_batches", "merge"]
