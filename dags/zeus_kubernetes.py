"""Example: a training in a Kubernetes pod without Airflow; ``ZeusTrial`` asks before it and reports after it.

The image holds the script, ``airflow-provider-zeus`` (``pip install --no-deps``) and ``nvidia-ml-py``. The script
passes its function to ``ZeusRun.from_env().train(train)`` and builds model and optimizer inside it: each attempt is a
new call.
"""

import logging
from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_zeus import ZeusJob, ZeusTrial

JOB = ZeusJob(batch_sizes=[32, 64, 128, 256], default_batch_size=64, target="accuracy >= 0.84", max_epochs=30)

try:
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    from kubernetes.client import models as k8s
except ImportError:
    logging.getLogger(__name__).warning(
        "zeus_kubernetes defines no DAG: it needs apache-airflow-providers-cncf-kubernetes."
    )
else:
    with (
        DAG(
            "zeus_kubernetes",
            schedule="@daily",
            start_date=datetime(2026, 1, 1),
            catchup=False,
            tags=["zeus", "example"],
        ) as dag,
        ZeusTrial(JOB) as trial,
    ):
        KubernetesPodOperator(
            task_id="train",
            image="registry.example.com/training:latest",
            cmds=["python", "/app/train.py"],
            env_vars=trial.env | {"ZEUS_POWER_SOCKET": "/run/zeus/power.sock"},  # the sidecar's, on the GPU's host
            do_xcom_push=True,  # the result comes back by itself
            container_resources=k8s.V1ResourceRequirements(limits={"nvidia.com/gpu": "1"}),
            volumes=[k8s.V1Volume(name="zeus", host_path=k8s.V1HostPathVolumeSource(path="/run/zeus"))],
            volume_mounts=[k8s.V1VolumeMount(name="zeus", mount_path="/run/zeus", read_only=True)],
            pool="gpu",
        )
