"""Takes its plan, and forgets to train."""

from airflow_provider_zeus import ZeusRun

print(ZeusRun.from_env().batch_size)
