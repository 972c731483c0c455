"""The trial log: :func:`airflow_provider_zeus.store.open.open_store` opens it."""
