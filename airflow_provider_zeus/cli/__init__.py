"""``airflow zeus ...``: the command line.

Every ``airflow`` call imports only ``definition`` of it.
"""
