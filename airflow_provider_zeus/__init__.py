"""Energy-aware retraining for Apache Airflow: the Zeus system (NSDI'23) as a provider."""

from airflow_provider_zeus.optimizer.job import ZeusJob

__version__ = "0.1.0"
__all__ = ["ZeusJob", "__version__"]
