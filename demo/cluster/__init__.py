"""``make demo-cluster``: PostgreSQL, Redis, Airflow and two Celery workers on this machine,
one of which is killed.

All are real processes that listen on 127.0.0.1 only;
their files are in a folder that is removed at the end.
"""
