"""The ``@task.zeus`` decorator."""
