"""The simulated GPU and plans of the training tests, for loops that frameworks own."""

from tests.unit.training.conftest import kit  # noqa: F401
