"""A DAG of Airflow 3: learns the files of each day that are not in the topic, then audits a partition of the topic.

Its workers have streampca, the settings of the model and of the store as STREAMPCA_… variables, and LAKE, the folder
with the days. A task that is retried continues, or says that it is done.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

BACKFILL = "streampca backfill $LAKE/day={{ ds }} --field embedding --timestamp-column time --number {{ ds_nodash }}"
AUDIT = "streampca audit --partition 0"

with DAG(
    "streampca_nightly",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=10)},
):
    backfill = BashOperator(task_id="backfill", bash_command=BACKFILL)
    audit = BashOperator(task_id="audit", bash_command=AUDIT)
    backfill >> audit
