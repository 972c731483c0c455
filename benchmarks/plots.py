"""How every picture looks: one colour and one name per policy and workload, panels in a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

POLICY = {
    "knowledge_gradient": ("Knowledge gradient", "#0b7a55"),
    "zeus": ("Zeus, traps settled", "#2f6fde"),
    "upstream": ("Zeus, public code", "#8d63c4"),
    "grid_search": ("Grid search", "#e08a1e"),
    "default": ("Default", "#777777"),
}
WORKLOAD = {
    "bert_qa": "BERT (QA)",
    "bert_sa": "BERT (SA)",
    "deepspeech2": "DeepSpeech2",
    "neumf": "NeuMF",
    "resnet50": "ResNet-50",
    "shufflenet": "ShuffleNet V2",
}
GREY = "#9a9a9a"
COLOURS = 256  # of a picture
_RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.bbox": "tight",
    "lines.linewidth": 1.8,
}


def name_of(workload: str) -> str:
    """A workload for people."""
    return WORKLOAD.get(workload, workload)


def panels(
    count: int, *, across: int = 3, width: float = 3.6, height: float = 2.7
) -> tuple[Any, list[Any]]:
    """(figure, so many axes); what is left of the last row stays empty."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(_RC)
    from matplotlib import pyplot

    across = min(across, count)
    down = math.ceil(count / across)
    figure, axes = pyplot.subplots(
        down, across, figsize=(width * across, height * down), squeeze=False
    )
    flat = [ax for row in axes for ax in row]
    for ax in flat[count:]:
        ax.set_visible(False)
    return figure, flat[:count]


def save(figure: Any, path: Path, title: str, handles: Sequence[Any] | None = None) -> Path:
    """Write the picture with its title above and one legend below all panels,
    by default that of the first panel.
    """
    from matplotlib import pyplot
    from PIL import Image

    if handles is None:
        handles = figure.axes[0].get_legend_handles_labels()[0]
    figure.tight_layout()
    width = figure.get_size_inches()[0]
    figure.suptitle(title, x=0.01, y=1.0, ha="left", va="bottom", fontsize=11, fontweight="bold")
    if handles:
        columns = min(len(handles), max(2, int(width / 1.6)))
        figure.legend(
            handles=list(handles), loc="upper left", bbox_to_anchor=(0.0, 0.0), ncols=columns
        )
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)
    with Image.open(path) as image:  # with a palette: a third of the size, to the eye the same
        small = image.convert("RGB").quantize(COLOURS, kmeans=3)
    small.save(path, optimize=True)
    return path
