"""Equations and constants of simulated GPUs: time per optimizer step and mean power of measured
trainings.

The equations, for a batch of ``b`` samples under the power limit ``p`` [W] on a chip that idles at
``idle``:

- work at full clocks: ``g = sample_s b``; the host needs ``host_s`` to launch a step. Host and GPU
  overlap in part: ``t0 = (host_s^m + g^m)^(1/m)``, utilisation ``u = g / t0``.
- dynamic power that the load would draw without a limit: ``d = busy_w u^k``.
- the limit leaves room ``r = max(p, floor) - idle`` for it: the power is ``idle + d rho`` with
  ``rho = (1 + (d / r)^q)^(-1/q)``. A small ``q`` is a bursty load: its peaks reach the limit, its
  mean does not.
- the clock falls accordingly: the work takes ``g (1 + c (rho^-e - 1))``, overlapped with the host
  as above.

Hence power is always within [idle, limit or floor], and time per step rises with ``b`` and falls
with ``p``, for every ``b`` from 1 up, also if nothing was measured. Time per sample falls with
``b``, except that under a low limit a fuller chip is slowed more (as measured: ShuffleNet on A40 at
100 W, 25 s an epoch at 128 and 29 s at 512).

Constants are fitted to the measured curves of the Zeus paper (NSDI'23, Table 1 and Appendix B;
published by its authors in github.com/ml-energy/zeus, ``trace/``, Apache-2.0): over each curve the
median error of time and of power is at most 10 %, as ``tests/unit/power/simulated/test_models.py``
holds. DeepSpeech2 is left out: its time per sample rises with the batch size (padding of
utterances), which the equations do not model.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A GPU model.

    Limits are those of its driver; ``idle_w`` is the least power measured, of the lightest load.
    ``clock_exponent`` is e of the equations.
    """

    model: str
    min_limit_w: float
    max_limit_w: float
    idle_w: float
    floor_w: float  # below it a real board draws more than its limit
    clock_exponent: float


@dataclass(frozen=True, slots=True)
class Load:
    """A training on one chip; dataset and optimizer of the traces that the constants were fitted
    to. Its last three fields are k, c and q of the equations.
    """

    dataset: str
    optimizer: str
    samples_per_epoch: int
    host_s: float
    sample_s: float
    busy_w: float
    utilisation_exponent: float
    slowdown: float
    sharpness: float

    def step(self, chip: Chip, samples: float, limit_w: float) -> tuple[float, float]:
        """Time [s] and mean power [W] of one optimizer step over ``samples`` under ``limit_w``."""
        work_s = self.sample_s * samples
        utilisation = work_s / _overlapped(self.host_s, work_s)
        dynamic_w = self.busy_w * utilisation**self.utilisation_exponent
        # Under a limit below its floor a board draws no less than at the floor.
        room_w = max(limit_w, chip.floor_w) - chip.idle_w
        share = (1.0 + (dynamic_w / room_w) ** self.sharpness) ** (-1.0 / self.sharpness)
        slowed_s = work_s * (1.0 + self.slowdown * (share**-chip.clock_exponent - 1.0))
        return _overlapped(self.host_s, slowed_s), chip.idle_w + dynamic_w * share


def _overlapped(host_s: float, work_s: float) -> float:
    m = 1.5  # they overlap in part: 1 would be one after the other, infinity wholly
    return float((host_s**m + work_s**m) ** (1.0 / m))


CHIPS = {
    "v100": Chip(
        model="V100",
        min_limit_w=100.0,
        max_limit_w=250.0,
        idle_w=36.0,
        floor_w=100.0,  # no floor is seen in the rows above its lowest limit
        clock_exponent=2.0,
    ),
    "a40": Chip(
        model="A40",
        min_limit_w=100.0,
        max_limit_w=300.0,
        idle_w=80.0,
        floor_w=110.0,
        clock_exponent=1.5,
    ),
}


# The traces give time per epoch; these epoch sizes turn it into time per step. Only their product
# with the step time was measured: CIFAR-100 50,000 training images; ImageNet-1k 1,281,167; SQuAD
# 1.1 about 88,000 features at length 384; Sentiment140 1.6 million tweets; MovieLens-1M 994,169
# training ratings with four sampled negatives each.
EPOCHS = {
    "shufflenet": ("cifar100", "adadelta", 50_000),
    "resnet50": ("imagenet", "adadelta", 1_281_167),
    "bert_qa": ("squad", "adamw", 88_000),
    "bert_sa": ("sentiment140", "adamw", 1_600_000),
    "neumf": ("movielens-1m", "adam", 4_970_845),
}

# Fitted to the measured curve of each pair: numbers of one do not hold for another. In the order of
# Load's fields: host_s, sample_s, busy_w, k, c, q.
LOADS = {
    ("v100", "shufflenet"): Load(
        *EPOCHS["shufflenet"], 0.03824, 0.0001373, 214.0, 1.096, 0.06448, 1.91
    ),
    ("v100", "resnet50"): Load(*EPOCHS["resnet50"], 0.02591, 0.002682, 214.0, 0.3, 0.09613, 4.331),
    ("v100", "bert_qa"): Load(*EPOCHS["bert_qa"], 0.002, 0.0188, 214.0, 1.1, 0.1083, 5.235),
    ("v100", "bert_sa"): Load(*EPOCHS["bert_sa"], 0.02249, 0.002373, 214.0, 0.3, 0.09495, 4.636),
    ("v100", "neumf"): Load(*EPOCHS["neumf"], 0.003111, 1.515e-06, 1.922, 0.3, 0.005, 20.0),
    ("a40", "shufflenet"): Load(
        *EPOCHS["shufflenet"], 0.03594, 0.0001431, 182.3, 0.9404, 0.2072, 1.877
    ),
    ("a40", "resnet50"): Load(*EPOCHS["resnet50"], 0.02341, 0.002684, 220.0, 0.3, 0.1436, 2.113),
    ("a40", "bert_qa"): Load(*EPOCHS["bert_qa"], 0.01512, 0.009435, 220.0, 1.1, 0.1889, 3.453),
    ("a40", "bert_sa"): Load(*EPOCHS["bert_sa"], 0.02813, 0.001123, 188.8, 0.3786, 0.2747, 9.539),
    ("a40", "neumf"): Load(*EPOCHS["neumf"], 0.002945, 1.751e-06, 5.505, 0.3, 0.005, 1.5),
}
