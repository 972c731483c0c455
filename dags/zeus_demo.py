"""Example that needs neither torch nor a GPU: ``airflow zeus demo`` runs it ten times.

The training is real: a small network in numpy. Its data are generated, other ones for each run.
Time and power are those of a simulated V100, and every figure is marked so.
"""

from datetime import datetime, timedelta

from airflow.sdk import dag, task

from airflow_provider_zeus import ZeusJob

JOB = ZeusJob(
    batch_sizes=[16, 32, 64, 128, 256, 512],
    default_batch_size=32,
    target="accuracy >= 0.95",
    max_epochs=60,
    device="simulated:v100/shufflenet",  # "auto" measures this machine
    profile_s=2.0,
    data_slice="{{ run_id }}",  # each run has data of its own
)


@dag(schedule=None, start_date=datetime(2026, 1, 1), max_active_runs=1, tags=["zeus", "example"])
def zeus_demo():
    """Tell two spirals apart.

    Run it by `airflow zeus demo`, or trigger it; the tab *Zeus cost* shows what it cost.
    """

    # SQLite, where one process writes at a time
    @task.zeus(JOB, retries=2, retry_delay=timedelta(seconds=5))
    def train(run, run_id):
        from zlib import crc32

        import numpy as np

        # the same data in each attempt of a run
        random = np.random.default_rng(crc32(run_id.encode()))
        angle = random.uniform(0, 6, 5120)
        side = random.integers(0, 2, 5120)
        turned = angle + np.pi * side
        x = np.stack([np.cos(turned), np.sin(turned)], 1) * angle[:, None] / 6 + random.normal(
            0, 0.03, (5120, 2)
        )
        # Weights are made inside: each attempt is a new call of train().
        # one layer; the last row and value are offsets
        hidden = random.normal(0, 2, (3, 32))
        output = np.zeros(33)
        momentum = [np.zeros_like(hidden), np.zeros_like(output)]
        rate = run.scale_lr(0.02, "sqrt")
        held_out = slice(4096, None)

        def forward(rows):
            inputs = np.pad(x[rows], ((0, 0), (0, 1)), constant_values=1)
            features = np.pad(np.tanh(inputs @ hidden), ((0, 0), (0, 1)), constant_values=1)
            return inputs, features, 1 / (1 + np.exp(-features @ output))

        for _ in run.epochs():  # ends when the target is reached
            shuffled = random.permutation(4096)
            for start in range(0, 4096, run.batch_size):
                rows = shuffled[start : start + run.batch_size]
                inputs, features, said = forward(rows)
                wrong = (said - side[rows]) / len(rows)  # gradient of the cross entropy
                behind = np.outer(wrong, output[:-1]) * (1 - features[:, :-1] ** 2)
                for weights, speed, slope in zip(
                    (hidden, output), momentum, (inputs.T @ behind, features.T @ wrong), strict=True
                ):
                    speed *= 0.9
                    speed -= rate * slope
                    weights += speed
                run.step(len(rows))
            run.report(accuracy=float(((forward(held_out)[2] > 0.5) == side[held_out]).mean()))
        path = run.attempt_dir / "model.npz"  # a folder of this attempt; the kept one stays
        np.savez(path, hidden=hidden, output=output)
        return str(path)

    train()


zeus_demo()
