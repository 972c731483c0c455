"""Keys of the XComs that the operators push."""

from __future__ import annotations

DECISION = "zeus_decision"  # what runs and why, for users
COST = "zeus_cost"  # what the run cost, for users
WAIT = "zeus_wait"  # until when the task waits and why, for users
PLAN = "zeus_plan"  # from ZeusTrial's setup task: the plan, for the training process
HANDED_OVER = "zeus_trial"  # from ZeusTrial's setup task: the trial and the result folder, for the teardown task
