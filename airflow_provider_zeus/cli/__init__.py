"""``airflow zeus ...``: the command line. ``definition`` is all that an ``airflow`` call loads of it."""
