"""Example: BERT retrained on the slices of Capriccio,
the drifting tweets of the Zeus paper (section 6.4, Figure 10).

The data set is not shipped. Its generator (github.com/ml-energy/zeus) writes a folder with
``1_train.json``, ``1_val.json``, ``2_train.json``, ... to ``38_val.json``: one JSON object with
``text`` and ``label`` on each line. Any folder of that form will do. Name it by the Variable
``zeus_capriccio_folder`` or by the parameter ``folder``, and trigger one run per slice: ``airflow
dags trigger zeus_capriccio --conf '{"slice": 1}'``. They train in order.

It needs ``airflow-provider-zeus[huggingface]`` and a model that the worker can load.
"""

import json
from pathlib import Path
from typing import Any

from airflow.sdk import Param, Variable, dag, task

from airflow_provider_zeus import ZeusJob

# As the paper trained it. Leave out policy and window, and the default policy runs, which looks for
# drift by itself.
JOB = ZeusJob(
    batch_sizes=[8, 16, 32, 64, 128],
    default_batch_size=128,
    target="accuracy >= {{ params.accuracy }}",
    max_epochs=10,
    policy="zeus",
    window=10,
)
PARAMS = {
    "slice": Param(1, type="integer", minimum=1, description="Number of the slice, 1 to 38"),
    "folder": Param(
        "", type="string", description="Folder of the slices; empty: Variable zeus_capriccio_folder"
    ),
    "model": Param(
        "google-bert/bert-base-uncased", type="string", description="Name or folder of a model"
    ),
    "accuracy": Param(
        0.84, type="number", description="Target on the validation part of the slice"
    ),
    "learning_rate": Param(
        4e-7, type="number", description="At batch size 128; square root rule at others"
    ),
}
MAX_TOKENS = 128  # of a tweet


def read_slice(folder: str, number: int, part: str) -> tuple[list[str], list[int]]:
    """Texts and labels of a slice; ``part`` is ``"train"`` or ``"val"``.

    Raises FileNotFoundError with the remedy.
    """
    path = (
        Path(folder or Variable.get("zeus_capriccio_folder", default="")) / f"{number}_{part}.json"
    )
    if not path.is_file():
        remedy = (
            "Set the Variable zeus_capriccio_folder, or the parameter folder, to the folder of the"
            " slices."
        )
        raise FileNotFoundError(f"slice = {number}: there is no file {path}. {remedy}")
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return [row["text"] for row in rows], [row["label"] for row in rows]


@dag(schedule=None, catchup=False, max_active_runs=1, params=PARAMS, tags=["zeus", "example"])
def zeus_capriccio():
    """One retraining per slice; Zeus picks the batch size and the power limit."""

    @task.zeus(JOB)
    def train(run, params):
        import transformers

        from airflow_provider_zeus.integrations.huggingface import ZeusTrainerCallback, arguments

        parts = {
            part: read_slice(params["folder"], params["slice"], part) for part in ("train", "val")
        }
        classes = sorted(set(parts["train"][1]))  # of Sentiment140: 0 and 4
        # Model, trainer and callback are built inside: each attempt is a new call of train().
        transformers.set_seed((run.plan.seed + run.attempt) % 2**31)
        tokenizer = transformers.AutoTokenizer.from_pretrained(params["model"])
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            params["model"], num_labels=len(classes)
        )

        def encoded(texts: list[str], labels: list[int]) -> list[dict[str, Any]]:
            found = tokenizer(texts, truncation=True, max_length=MAX_TOKENS)
            rows = zip(found["input_ids"], found["attention_mask"], labels, strict=True)
            return [
                {"input_ids": i, "attention_mask": a, "labels": classes.index(b)}
                for i, a, b in rows
            ]

        def accuracy(seen: Any) -> dict[str, float]:
            return {"accuracy": float((seen.predictions.argmax(-1) == seen.label_ids).mean())}

        rate = run.scale_lr(
            params["learning_rate"], "sqrt", reference_batch_size=JOB.default_batch_size
        )
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=run.attempt_dir,
                learning_rate=rate,
                lr_scheduler_type="constant",
                save_strategy="no",
                report_to="none",
                **arguments(run),
            ),
            train_dataset=encoded(*parts["train"]),
            eval_dataset=encoded(*parts["val"]),
            processing_class=tokenizer,
            compute_metrics=accuracy,
            callbacks=[ZeusTrainerCallback(run)],
        )
        trainer.train()
        trainer.save_model()
        return str(run.attempt_dir)

    train()


zeus_capriccio()
