"""An Airflow DAG that carries deletion requests out every night.

Put it into the folder of your DAGs. It needs Airflow 2.4 or later, and purge on the workers.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow import DAG
from airflow.operators.bash import BashOperator

ENVIRONMENT = {"PURGE_LEDGER": "/srv/model/requests.db", "PURGE_LEDGER_KEY": "/etc/purge/requests.key"}

with DAG(
    "deletion_requests",
    schedule="30 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # a second worker would only be told that one is at work
) as dag:
    take_in = BashOperator(
        task_id="take_in",
        bash_command="purge request watch /srv/model/inbox",
        env=ENVIRONMENT,
        append_env=True,
    )
    run = BashOperator(
        task_id="run",
        bash_command=(
            "purge request run --due 7 --quiet --policy /srv/model/policy.yaml --fail-if failed "
            "--after 'python /srv/model/register.py'"  # as in docs/guides/experiments.md
        ),
        env=ENVIRONMENT,
        append_env=True,
        trigger_rule="all_done",  # a bad file in the folder must not keep the others waiting
        retries=2,  # whatever ended the last one, this one goes on with its batch
        retry_delay=timedelta(minutes=10),
    )
    verify = BashOperator(
        task_id="verify", bash_command="purge request verify", env=ENVIRONMENT, append_env=True,
        trigger_rule="all_done",
    )  # fmt: skip
    take_in >> run >> verify
