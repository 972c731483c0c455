"""Detects training at the chosen limit that no longer draws what its profile says."""

from __future__ import annotations

from airflow_provider_zeus.power.meter import Reading, Span

MAX_DIFFERENCE = 0.1  # relative difference of J per sample from the profile that counts as a strike
STRIKES = 2  # consecutive stretches with such a difference after which the profile no longer holds


class DriftDetector:
    """Compares stretches of steady training, each as long as a window, with the profile. They continue across epochs.

    :param min_s: least duration of a stretch [s].
    :param min_samples: least samples of a stretch.
    """

    def __init__(self, min_s: float, min_samples: int) -> None:
        self._min_s, self._min_samples = min_s, min_samples
        self._strikes = self._samples = self._since = 0
        self._span = Span()

    @property
    def is_open(self) -> bool:
        """Whether training that goes on now is part of a stretch."""
        return self._span.is_open

    def drifted(self, reading: Reading, samples: int, j_per_sample: float, *, pauses: bool) -> bool:
        """Take training up to ``reading`` into account; return whether it has left its profile.

        :param samples: trained so far in all.
        :param j_per_sample: of the profile.
        :param pauses: training steps end here and go on after the next call.
        """
        if not self.is_open:
            if not pauses:
                self._span.open(reading)
                self._since = samples
            return False
        self._span.advance(reading)
        self._samples, self._since = self._samples + samples - self._since, samples
        if self._span.energy_j is None:
            self._start_stretch(samples)
        elif self._span.time_s >= self._min_s and self._samples >= self._min_samples:
            difference = abs(self._span.energy_j / self._samples / j_per_sample - 1)
            self._strikes = self._strikes + 1 if difference > MAX_DIFFERENCE else 0
            self._start_stretch(samples)
            if not pauses:
                self._span.open(reading)
        if pauses:
            self._span.close(reading)
        return self._strikes >= STRIKES

    def pause(self) -> None:
        """Leave out what came since the last call of :meth:`drifted`, and what comes until the next one."""
        self._span.pause()

    def restart(self) -> None:
        """Forget the open stretch: the limit has changed, and with it the profile to compare with."""
        self._start_stretch(self._since)

    def _start_stretch(self, samples: int) -> None:
        self._span = Span()
        self._samples = 0  # of the stretch, up to the last call
        self._since = samples  # trained in all at the last call
