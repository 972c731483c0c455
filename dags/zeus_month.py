"""Example: on the first of each month what all Zeus jobs cost and saved in the month before, by mail.

It needs the provider ``apache-airflow-providers-smtp`` and its Connection ``smtp_default``. Change the addresses.
"""

import logging
from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, get_current_context, task

TO, FROM = "whoever-pays@example.com", "airflow@example.com"

try:
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier
except ImportError:
    logging.getLogger(__name__).warning("zeus_month defines no DAG: it needs apache-airflow-providers-smtp.")
else:

    @dag(schedule="0 6 1 * *", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, tags=["zeus", "example"])
    def zeus_month():
        """The report of a month: the page as the mail's text, the figures as CSV files beside it."""

        @task(retries=2, retry_delay=timedelta(minutes=10))
        def mail():
            import tempfile

            from airflow_provider_zeus.hooks.zeus import ZeusHook

            context = get_current_context()
            first = context["dag_run"].run_after.replace(day=1)
            month = f"{first - timedelta(days=1):%Y-%m}"
            with tempfile.TemporaryDirectory() as folder:
                page, *figures = ZeusHook().write_month(month, folder)
                text = page.read_text(encoding="utf-8")
                notifier = SmtpNotifier(TO, FROM, f"Zeus, {month}", html_content=text, files=list(map(str, figures)))
                notifier.notify(context)  # as a callback it would be rendered as a template, names of jobs included

        mail()

    zeus_month()
