"""Example: a training in a Kubernetes pod without Airflow;
``ZeusTrial`` asks before it and reports after it.

The image holds the script, ``airflow-provider-zeus`` (``pip install --no-deps``) and
``nvidia-ml-py``. The script passes its function to ``ZeusRun.from_env().train(train)`` and builds
model and optimizer inside it: each attempt is a new call.
What the cluster has to have is in docs/how-to/kubernetes.md.

A pod that dies (no memory, a node that goes away, an image that cannot be pulled) is started again
by ``retries``. What it cost up to then is in a file below ``result_path``, a folder that pod and
worker share, and counts. The retry trains the default batch size alone.
"""

import logging
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_zeus import ZeusJob, ZeusTrial

JOB = ZeusJob(
    batch_sizes=[32, 64, 128, 256], default_batch_size=64, target="accuracy >= 0.84", max_epochs=30
)
RESULTS = "/shared/zeus"

try:
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    from kubernetes.client import models as k8s
except ImportError:
    logging.getLogger(__name__).warning(
        "zeus_kubernetes defines no DAG: it needs apache-airflow-providers-cncf-kubernetes."
    )
else:

    def claim(name: str, *, read_only: bool = False) -> k8s.V1Volume:
        """The volume of a claim in the pod's namespace, under the claim's name."""
        source = k8s.V1PersistentVolumeClaimVolumeSource(claim_name=name, read_only=read_only)
        return k8s.V1Volume(name=name, persistent_volume_claim=source)

    with (
        DAG(
            "zeus_kubernetes",
            schedule="@daily",
            start_date=datetime(2026, 1, 1),
            catchup=False,
            tags=["zeus", "example"],
        ) as dag,
        ZeusTrial(JOB, result_path=RESULTS) as trial,
    ):
        KubernetesPodOperator(
            task_id="train",
            namespace="airflow",
            image="registry.example.com/training:latest",
            cmds=["python", "/app/train.py"],
            # the sidecar's, on the GPU's host
            env_vars=trial.env | {"ZEUS_POWER_SOCKET": "/run/zeus/power.sock"},
            container_resources=k8s.V1ResourceRequirements(limits={"nvidia.com/gpu": "1"}),
            security_context=k8s.V1PodSecurityContext(
                run_as_non_root=True,
                run_as_user=1000,
                seccomp_profile=k8s.V1SeccompProfile(type="RuntimeDefault"),
                fs_group=50000,  # may write the results
                supplemental_groups=[50000],  # may connect to the sidecar
            ),
            # as the level *restricted* of Pod Security asks
            container_security_context=k8s.V1SecurityContext(
                allow_privilege_escalation=False, capabilities=k8s.V1Capabilities(drop=["ALL"])
            ),
            volumes=[claim("zeus-power", read_only=True), claim("zeus-results")],
            volume_mounts=[
                k8s.V1VolumeMount(name="zeus-power", mount_path="/run/zeus", read_only=True),
                k8s.V1VolumeMount(name="zeus-results", mount_path=RESULTS),
            ],
            pool="gpu",
            retries=2,
            retry_delay=timedelta(minutes=5),
        )
