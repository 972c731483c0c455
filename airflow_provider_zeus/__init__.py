"""Energy-aware retraining for Apache Airflow: the Zeus system (NSDI'23) as a provider."""

__version__ = "0.1.0"
