"""Whether training at the chosen limit still draws what its profile says."""

from __future__ import annotations

from airflow_provider_zeus.power.meter import Mark, Span

OFF = 0.1  # relative difference of J per sample from the profile,
STRIKES = 2  # in so many stretches one after the other: the profile is of another training


class Watch:
    """Stretches of steady training, each as long as a window, against the profile. They go on across epochs.

    :param min_s: of a stretch, and ``min_samples``: at least.
    """

    def __init__(self, min_s: float, min_samples: int) -> None:
        self._min_s, self._min_samples = min_s, min_samples
        self._strikes = 0
        self._span, self._samples, self._since = Span(), 0, 0

    @property
    def closed(self) -> bool:
        """Whether training that goes on now is not looked at yet."""
        return not self._span.is_open

    def left(self, mark: Mark, samples: int, j_per_sample: float, *, pauses: bool) -> bool:
        """Look up to ``mark``, when ``samples`` were trained in all; whether training has left its profile.

        :param pauses: training steps end here, and go on after the next look.
        """
        if self.closed:
            if not pauses:
                self._span.open(mark)
                self._since = samples
            return False
        self._span.advance(mark)
        self._samples, self._since = self._samples + samples - self._since, samples
        if self._span.energy_j is None:
            self._new_stretch(samples)
        elif self._span.time_s >= self._min_s and self._samples >= self._min_samples:
            off = abs(self._span.energy_j / self._samples / j_per_sample - 1)
            self._strikes = self._strikes + 1 if off > OFF else 0
            self._new_stretch(samples)
            if not pauses:
                self._span.open(mark)
        if pauses:
            self._span.close(mark)
        return self._strikes >= STRIKES

    def pause(self) -> None:
        """Leave out what came since the last look, and what comes until the next one."""
        self._span.pause()

    def _new_stretch(self, since: int = 0) -> None:
        self._span = Span()
        self._samples, self._since = 0, since
