"""Each promise of docs/death.md with the tests that hold it, and how they ended."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
HEAD = ("Case", "What holds")


@dataclass(frozen=True, slots=True)
class Promise:
    """One row: a case, what holds in it, and its tests as ``path::name``;
    all parameters of a name belong to it.
    """

    case: str
    holds: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """How one test ended: ``passed``, ``failed`` or ``skipped``."""

    test: str
    ended: str


_RUNS = "tests/integration/test_kept_value.py"
_RESUMED = "tests/unit/training/test_resumed.py"
_RELIEF = "tests/integration/test_relief.py"
_STRIKES = "tests/unit/optimizer/test_strikes.py"
_STARTS = "tests/unit/optimizer/test_starts.py"
_FAILING = "tests/unit/training/test_failing_sizes.py"
_NO_DATA = "tests/unit/training/test_no_data.py"
_FOLDER = "tests/unit/training/test_attempt_dir.py"
_TORCHRUN = "tests/integration/test_torchrun.py"
_MEASURE = "tests/integration/test_measure.py"
_LEFT = "tests/integration/test_slurm_left.py"

PROMISES: dict[str, tuple[Promise, ...]] = {
    "kept": (
        Promise(
            "A function saves in `finally`, or clears its folder when it begins",
            "nothing is called after the kept value; the kept model lies there",
            (
                f"{_FAILING}::test_the_kept_call_is_the_last_one_whatever_ran_before",
                f"{_RUNS}::test_what_runs_before_the_kept_value_never_runs_after_it",
            ),
        ),
        Promise(
            "The device fails after the function has returned",
            "the value is kept",
            (
                f"{_FAILING}::test_a_model_that_was_returned_is_kept_where_the_device_fails_at_the_end",
            ),
        ),
        Promise(
            "Anything of ours raises after a function has returned or a command ended",
            "the value is kept; the log says once what failed and why; only a required target fails it",
            (
                "tests/unit/operators/test_end_outlived.py::test_a_function_that_has_returned_keeps_its_value",
                "tests/unit/operators/test_end_outlived.py::test_a_task_keeps_its_value",
            ),
        ),
        Promise(
            "An exploratory attempt raises, or reports NaN or an infinity on the target's side",
            "the incumbent trains in the same task; the attempt is failed, with its reason",
            (
                f"{_FAILING}::test_an_exploratory_attempt_that_raises_is_given_up_and_the_incumbent_trains",
                f"{_FAILING}::test_an_exploratory_attempt_that_reports_no_finite_number_is_given_up",
                f"{_RUNS}::test_a_function_whose_try_fails_keeps_the_incumbents_model",
            ),
        ),
        Promise(
            "An exploratory attempt's end leaves the function wrapped: asyncio's `TaskGroup`, `except BaseException: sys.exit(0)`, a cancelled task",
            "the incumbent trains in the same task; what ends or steers the task wins",
            (
                "tests/unit/training/test_wrapped_interrupts.py::test_the_next_attempt_follows",
                "tests/unit/training/test_wrapped_interrupts.py::test_what_ends_or_steers_the_task_wins",
            ),
        ),
        Promise(
            "Out of memory in a data loader's worker or memory-pinning thread, an error group, or behind another error",
            "the next attempt runs, as after any out of memory",
            (
                "tests/unit/training/test_attempt_loop.py::test_out_of_memory_in_the_first_attempt_runs_the_next_and_in_the_last_is_raised",
                "tests/unit/training/test_attempt_loop.py::test_out_of_memory_in_a_worker_of_the_data_loader",
                "tests/unit/training/test_attempt_loop.py::test_out_of_memory_in_other_words_and_behind_another_error",
            ),
        ),
        Promise(
            "A report in another unit than the target (75.3 for `accuracy >= 0.88`), two in an epoch, a huge number; `run.close()` in the loop",
            "no untrained model counts as trained: the error names the remedy; `run.close()` does nothing",
            (
                "tests/unit/model/test_target.py::test_a_metric_in_another_unit_is_refused_with_the_remedy",
                "tests/unit/training/test_attempt_loop.py::test_bad_reports_are_named_in_one_clear_error",
                "tests/unit/training/test_attempt_loop.py::test_a_run_that_its_function_closes_goes_on",
            ),
        ),
        Promise(
            "A metric is infinite on the far side of the target (an overflowing perplexity)",
            "the target is not reached; the training goes on",
            (
                "tests/unit/model/test_target.py::test_an_infinity_on_the_far_side_has_not_reached_it",
            ),
        ),
        Promise(
            "An exploratory attempt's process is killed (command)",
            "the command starts again with the incumbent",
            (
                f"{_RUNS}::test_a_script_whose_try_fails_is_followed_by_the_incumbent",
                f"{_RUNS}::test_a_script_that_knows_nothing_of_us_is_started_again_with_the_incumbent",
            ),
        ),
        Promise(
            "One rank of an exploratory attempt raises (torchrun)",
            "all processes end; the command starts again with the incumbent",
            (
                f"{_TORCHRUN}::test_an_error_in_a_try_ends_the_processes_and_the_incumbent_runs_in_new_ones",
            ),
        ),
        Promise(
            "A pod dies in its exploratory attempt, or at the best known size (`ZeusTrial`)",
            "its retry trains the default alone",
            (
                f"{_RUNS}::test_a_pod_that_dies_in_its_try_is_retried_with_the_default_alone",
                f"{_RELIEF}::test_a_pod_that_dies_at_the_best_size_is_retried_with_the_default",
            ),
        ),
        Promise(
            "A pod dies, its result is lost, the operator's own retry trains",
            "pages, alerts and log show the retry; the lost start is a row without a cost",
            (
                "tests/unit/operators/test_collect.py::test_what_a_later_try_kept_is_the_run_in_log_and_page",
                "tests/integration/test_trial.py::test_earlier_starts_of_a_retried_operator",
            ),
        ),
        Promise(
            "The worker of a Slurm job is killed, and its task has retries left (Airflow 3.3 and later)",
            "the retry takes the job over: one attempt, each joule once",
            (
                f"{_LEFT}::test_the_next_try_goes_on_with_the_job",
                f"{_LEFT}::test_a_job_that_waits_in_the_queue_goes_on_too",
                f"{_LEFT}::test_a_job_that_ended_meanwhile_is_read_to_its_end",
                f"{_LEFT}::test_two_tries_are_killed_and_the_last_one_goes_on",
            ),
        ),
        Promise(
            "Such a task is stopped or cleared, has no retry left or Airflow 3.2; or Slurm has forgotten the job",
            "no job is left behind; the next try submits a new one",
            (
                f"{_LEFT}::test_a_task_that_is_stopped_cancels_its_job",
                f"{_LEFT}::test_a_clear_submits_anew_and_leaves_no_job",
                f"{_LEFT}::test_the_last_try_takes_its_job_with_it",
                f"{_LEFT}::test_before_airflow_3_3_a_killed_worker_cancels_its_job",
                f"{_LEFT}::test_a_job_that_slurm_has_forgotten_without_a_result_is_followed_by_a_new_one",
            ),
        ),
        Promise(
            "Only a `ZeusTrial`'s setup task is cleared",
            "no training counts twice",
            (
                "tests/integration/test_trial.py::test_clearing_the_setup_task_alone_books_no_training_twice",
            ),
        ),
        Promise(
            "The incumbent, not the default, raises in its epochs or reports NaN, or its command fails",
            "the default trains in the same task; two such runs in three bar the size for a while",
            (
                f"{_FAILING}::test_the_default_follows_another_size_that_fails",
                f"{_FAILING}::test_a_metric_that_is_no_number_is_followed_by_the_default",
                f"{_STRIKES}::test_fifteen_runs_after_the_incumbent_has_begun_to_fail_end_with_a_model",
                f"{_RELIEF}::test_fifteen_runs_of_a_function",
                f"{_RELIEF}::test_fifteen_runs_of_a_command_that_knows_nothing_of_us",
            ),
        ),
        Promise(
            "Every size fails, for several nights",
            "one run trains twice, the others the default alone; no size is barred",
            (
                f"{_STRIKES}::test_a_mistake_at_every_size_trains_twice_once_and_costs_no_size_its_place",
            ),
        ),
        Promise(
            "The slice has fewer samples than the batch size (`drop_last`)",
            "the largest size that fits trains in the same task; if none fits, the error stands",
            (
                f"{_FAILING}::test_a_slice_with_fewer_samples_than_the_size_takes_the_largest_that_fits",
                f"{_FAILING}::test_where_no_size_fits_a_slice_the_error_stands",
            ),
        ),
        Promise(
            "The default or a pinned size raises; an error outside the epochs, or in the code; Airflow's Skip and Fail; `strict=True`",
            "the error is the author's; if another start follows the incumbent, it trains",
            (
                f"{_FAILING}::test_an_error_without_a_relief_is_its_authors",
                f"{_FAILING}::test_what_fails_outside_of_an_epoch_is_its_authors",
                f"{_FAILING}::test_a_mistake_in_the_code_is_its_authors",
                f"{_FAILING}::test_what_steers_the_task_leaves_the_run",
                f"{_FAILING}::test_a_strict_job_fails_with_its_exploratory_attempt",
            ),
        ),
        Promise(
            "A start from the earlier model raises in each run",
            "another start trains and never waits for it; from the second time on it is planned less and less",
            (
                f"{_STARTS}::test_a_start_that_raises_in_each_run_is_planned_less_and_less",
                f"{_STARTS}::test_a_start_that_raises_keeps_no_other_start_from_running",
            ),
        ),
        Promise(
            "A training goes on from a checkpoint",
            "its epochs are not learnt if it says so; `run.attempt_dir` is new for each attempt; none takes another start's checkpoint",
            (
                f"{_RESUMED}::test_epochs_go_on_where_the_checkpoint_was_and_are_not_learnt",
                f"{_RESUMED}::test_a_start_does_not_go_on_from_the_checkpoint_of_the_start_that_failed_before_it",
                f"{_FOLDER}::test_the_kept_attempts_folder_stays_and_the_others_goes",
            ),
        ),
        Promise(
            "A process dies with an attempt's folder",
            "the host's next run removes it, but no living process's or kept one",
            (
                f"{_FOLDER}::test_what_a_killed_process_left_is_removed_by_the_next_run_and_what_a_living_one_has_is_not",
            ),
        ),
        Promise(
            "An empty slice of data",
            "state `no_data`; the value is kept, nothing is learnt",
            (
                f"{_NO_DATA}::test_an_epoch_without_a_step_ends_the_run_without_data_and_keeps_the_value",
                f"{_RUNS}::test_an_empty_slice_keeps_the_tasks_value_and_teaches_nothing",
            ),
        ),
        Promise(
            "A notifier raises or hangs",
            "the task keeps state and value; the event is not sent again",
            (
                "tests/integration/test_alerts.py::test_what_raises_changes_no_state_and_is_not_sent_again",
                "tests/integration/test_alerts.py::test_a_notifier_that_hangs_adds_nothing_to_the_tasks_time",
            ),
        ),
        Promise(
            "A process dies between its attempt's end and its events",
            "the next run sends what the dead one had not looked for, and repeats none it had begun",
            (
                "tests/unit/operators/test_alerts.py::test_what_a_run_could_not_look_for_since_it_died_is_sent_by_the_next",
                "tests/unit/operators/test_alerts.py::test_what_was_not_sent_since_its_sender_died_is_not_sent_again",
            ),
        ),
        Promise(
            "A forked child of the training exits or raises",
            "it writes nothing of its parent's attempt",
            (
                "tests/unit/training/test_forked.py::test_a_child_that_leaves_the_function_writes_nothing",
            ),
        ),
    ),
    "unanswered": (
        Promise(
            "PostgreSQL is stopped (SIGSTOP) in a statement, commit or connection; a listener never answers",
            "the call ends after 10 s, a connection after 5 s",
            (
                "tests/unit/store/test_store_hangs.py::test_a_statement_ends_though_the_server_is_stopped",
                "tests/unit/store/test_store_hangs.py::test_a_commit_that_gets_no_answer_may_be_stored",
                "tests/unit/store/test_store_hangs.py::test_a_new_connection_to_a_stopped_server_ends",
                "tests/unit/store/test_store_hangs.py::test_a_listener_that_never_answers_is_an_error",
            ),
        ),
        Promise(
            "The store does not answer a training",
            "it waits 30 s at most in all; no heartbeat waits or is lost",
            (
                "tests/unit/operators/test_reporter_waits.py::test_no_beat_waits_and_none_is_lost",
                "tests/unit/operators/test_reporter_waits.py::test_all_ends_of_a_run_wait_no_longer_than_its_budget",
                "tests/unit/operators/test_reporter_waits.py::test_the_whole_budget_is_thirty_seconds_and_a_stopped_task_has_one",
            ),
        ),
        Promise(
            "The task is stopped (SIGTERM, `execution_timeout`) while its store hangs",
            "the signal handler does not wait; the cost goes to a file",
            (
                "tests/unit/operators/test_reporter_waits.py::test_a_signal_ends_a_wait_at_once",
                "tests/unit/operators/test_reporter_waits.py::test_a_stopped_task_keeps_its_end_in_a_file_at_once",
                "tests/unit/operators/test_reporter_waits.py::test_an_end_on_the_way_out_of_a_time_limit_is_not_waited_for",
            ),
        ),
        Promise(
            "One connection is cut while a run asks",
            "the repeated question gets the same attempt",
            (
                "tests/unit/operators/test_asking.py::test_one_connection_that_is_cut_costs_no_decision",
                "tests/unit/operators/test_asking.py::test_a_question_that_was_answered_in_vain_is_asked_again_for_the_same_trial",
            ),
        ),
        Promise(
            "The store never answers the question",
            "the default runs; a late answer is closed",
            (
                "tests/unit/operators/test_asking.py::test_a_store_that_never_answers_is_given_up_and_a_late_answer_closed",
            ),
        ),
        Promise(
            "A stopped process holds the writers' turn (`zeus.db.turn`)",
            "the database's own lock answers within the question's 20 s",
            (
                "tests/unit/store/sql/test_turns.py::test_a_question_is_answered_though_a_stopped_process_holds_the_turn",
            ),
        ),
        Promise(
            "Airflow does not give the live settings within 3 s",
            "the last known ones hold, a pin too; log and decision tell their age",
            (
                "tests/unit/store/test_contract_answer.py::test_where_they_cannot_be_read_the_last_known_ones_hold_with_their_age",
            ),
        ),
        Promise(
            "A run began without its store",
            "the first heartbeat that arrives writes its row",
            (
                "tests/unit/operators/test_reporter_waits.py::test_a_run_that_began_alone_is_adopted_at_the_first_beat_that_gets_through",
            ),
        ),
        Promise(
            "The answer to a heartbeat or an end is lost",
            "what it brought counts once",
            (
                "tests/unit/store/test_contract_unsure.py::test_a_heartbeat_whose_answer_was_lost_counts_once_with_the_next_one",
                "tests/unit/store/test_contract_unsure.py::test_of_several_lost_answers_each_counts_once_with_the_end",
                "tests/unit/operators/test_reporter_waits.py::test_it_counts_once_where_the_end_is_told_by_the_next_run",
            ),
        ),
        Promise(
            "40 processes on a server with 25 connections",
            "all are served",
            (
                "tests/unit/store/test_store_hangs.py::test_forty_at_once_on_a_server_with_fewer_connections_are_all_served",
                "tests/unit/store/test_store_hangs.py::test_no_connection_is_kept_between_two_calls",
            ),
        ),
    ),
    "damage": (
        Promise(
            "A heartbeat or an end comes after the lease lapsed and the attempt was closed",
            "it is open again, or ends as it did, with samples and power points; its death is unlearnt",
            (
                "tests/unit/store/test_contract_late.py::test_a_heartbeat_after_the_lease_opens_the_trial_again",
                "tests/unit/store/test_contract_late.py::test_a_trial_that_is_open_again_teaches_no_death",
                "tests/unit/store/test_contract_late.py::test_an_end_after_the_lease_is_kept_with_all_that_it_brings",
            ),
        ),
        Promise(
            "A retry or repeated message took the attempt over, and its first run lives",
            "it stays closed and gets its figures; its log says so once",
            (
                "tests/unit/store/test_contract_late.py::test_a_superseded_trial_stays_closed_and_keeps_its_figures",
                "tests/unit/store/test_contract_late.py::test_a_redelivered_trial_stays_closed_and_keeps_its_figures",
                "tests/unit/operators/test_result_reporter.py::test_a_run_whose_trial_is_no_longer_its_own_says_so_once",
            ),
        ),
        Promise(
            "Two starts of one plan live at once",
            "each is an observation; the first is told",
            (
                "tests/unit/store/test_contract_late.py::test_of_two_living_starts_under_one_key_the_first_is_told_of_the_second",
            ),
        ),
        Promise(
            "A person closes an attempt (`airflow zeus repair --close`)",
            "it stays closed; later reports are kept as figures",
            (
                "tests/unit/store/test_contract_late.py::test_a_trial_closed_by_hand_stays_closed_and_keeps_its_figures",
            ),
        ),
        Promise(
            "A heartbeat under a clock ten years ahead, then a death",
            "no lease ends further ahead than its length, kept in its row; one over two lengths ahead is over",
            (
                "tests/unit/store/test_contract_late.py::test_a_heartbeat_under_a_clock_that_is_ahead_does_not_hold_the_trial_for_good",
            ),
        ),
        Promise(
            "The clock steps back by an hour",
            "the next heartbeat renews a lease; until then it may read as abandoned",
            (
                "tests/unit/store/test_contract_ask.py::test_a_clock_that_steps_back_ends_no_living_run",
            ),
        ),
        Promise(
            "`zeus.db` is deleted or moved",
            "nothing is written, no file made; the training goes on, its cost waits for the next log",
            (
                "tests/unit/store/sql/test_sqlite_file.py::test_a_log_that_was_deleted_is_not_written_and_not_made",
                "tests/unit/operators/test_result_reporter.py::test_a_cost_whose_log_is_gone_waits_and_goes_into_the_new_one",
            ),
        ),
        Promise(
            "`zeus.db` is replaced, or put back from a backup",
            "each process's next transaction uses the new file; an attempt that it lacks is written again",
            (
                "tests/unit/store/sql/test_sqlite_file.py::test_a_log_put_back_from_a_backup_is_the_one_that_is_read_and_written",
                "tests/unit/operators/test_result_reporter.py::test_a_trial_that_a_new_log_does_not_hold_is_written_there",
            ),
        ),
        Promise(
            "A backup is made beside a writer, living or killed, and put back beside what a killed one left",
            "it has every row, the write-ahead log's too; it is put back whole, or refused while the log is open elsewhere",
            (
                "tests/unit/store/sql/test_backup.py::test_a_backup_beside_a_writer_is_whole",
                "tests/unit/store/sql/test_backup.py::test_rows_beside_the_file_are_in_the_backup",
                "tests/unit/store/sql/test_backup.py::test_a_backup_is_put_back_beside_what_a_killed_writer_left",
                "tests/unit/store/sql/test_backup.py::test_a_log_that_another_process_has_open_is_not_replaced",
            ),
        ),
        Promise(
            "A checkpoint is damaged",
            "it is dropped with one log line; the attempts are folded again",
            (
                "tests/unit/store/sql/test_damage.py::test_a_damaged_checkpoint_is_dropped_and_the_log_folded_again",
            ),
        ),
        Promise(
            "An attempt's row is damaged",
            "it is left out, and `airflow zeus doctor` and the pages name it; no run, question, page or export fails",
            (
                "tests/unit/store/sql/test_damage.py::test_a_damaged_row_is_left_out_and_named",
                "tests/unit/store/test_store_variable.py::test_one_damaged_trial_does_not_lose_the_others_and_can_be_repaired",
            ),
        ),
        Promise(
            "The Variable of one job is damaged",
            "its runs and pages and `airflow zeus jobs list` name it; other jobs go on",
            (
                "tests/unit/store/test_store_variable.py::test_one_damaged_variable_hides_no_other_job",
                "tests/unit/cli/test_jobs.py::test_one_damaged_variable_hides_no_other_job",
            ),
        ),
    ),
    "odd": (
        Promise(
            "`[zeus] state_dir` holds foreign things: deeply nested JSON, a huge or binary file, a folder, a pipe, a socket",
            "it is named and left alone; trainings, `repair` and `doctor` do the rest",
            (
                "tests/unit/power/test_odd_state_dir.py::test_what_is_named_like_a_limit_record_and_is_none_is_named_and_left_alone",
                "tests/unit/power/test_odd_state_dir.py::test_a_gpu_is_locked_or_not_whatever_lies_in_its_locks_place",
                "tests/unit/cli/test_odd_state_dir.py::test_doctor_names_it",
                "tests/unit/cli/test_odd_state_dir.py::test_repair_names_it_and_does_the_rest",
            ),
        ),
        Promise(
            "A power limit's guardian is killed, then its training",
            "the next heartbeat or limit starts another; the limit found is in force within 2 s of the training's end",
            (
                "tests/unit/power/test_nvml_guardian.py::test_a_guardian_killed_in_the_middle_of_a_training_is_replaced_by_the_heartbeat",
            ),
        ),
        Promise(
            "Nobody reads the sidecar's log, which a member of its group fills",
            "limits are set and given back, at SIGTERM too; the log counts dropped lines",
            (
                "tests/security/test_sidecar_clients.py::test_a_log_that_nobody_reads_holds_nothing_up",
                "tests/security/test_sidecar_clients.py::test_a_signal_ends_it_though_nobody_reads_its_log",
            ),
        ),
        Promise(
            "A signal names a file or an address that it may not read",
            "the run trains without it; its log names the remedy, nothing that was read; a `strict` job opens no attempt",
            (
                "tests/security/test_signal_reads.py::test_a_run_trains_without_a_signal_that_is_refused",
            ),
        ),
        Promise(
            "The GPU's driver is slow, or a call never returns",
            "the training waits as above; missing readings have a reason; another process gives the limit back",
            (
                "tests/unit/power/test_slow_nvml.py::test_between_its_first_and_last_reading_a_training_waits_for_2_percent_of_its_time",
                "tests/unit/power/test_slow_nvml.py::test_a_call_that_hangs_is_waited_for_once_and_the_guardian_gives_the_limit_back",
                "tests/unit/power/test_slow_nvml.py::test_a_driver_that_hangs_as_the_device_is_opened_fails_no_task_and_no_other_source_stands_in",
                "tests/integration/test_task_measured.py::test_a_driver_that_hangs_holds_no_task",
            ),
        ),
        Promise(
            "No thread can be started",
            "the training runs without heartbeats, and may read as abandoned until its end",
            (
                "tests/unit/training/test_no_threads.py::test_a_training_runs_without_a_heartbeat",
                "tests/unit/training/test_no_threads.py::test_polled_energy_is_known_as_far_as_its_readings_go",
                "tests/unit/operators/test_reporter_waits.py::test_without_a_thread_the_store_is_asked_here",
                "tests/unit/store/test_store_hangs.py::test_without_a_thread_there_is_no_watch_and_nothing_fails",
            ),
        ),
        Promise(
            "No process can be started (`EAGAIN`)",
            "no guardian, so no power limit is set; the training runs",
            ("tests/unit/training/test_no_threads.py::test_a_training_runs_without_a_guardian",),
        ),
        Promise(
            "The disk is full, and Airflow cannot be reached",
            "the log has the figures and a line that enters them by hand; no empty or half file stays",
            (
                "tests/unit/operators/test_full_disk.py::test_the_cost_of_a_task_stands_in_the_log_and_can_be_entered_by_hand",
                "tests/unit/operators/test_full_disk.py::test_the_cost_of_a_script_stands_in_the_log",
            ),
        ),
        Promise(
            "The folder for temporary files is full or gone (command)",
            "the command trains, its plan in the environment; an earlier error ends its attempt, with the reason",
            (
                "tests/integration/test_command.py::TestNoRoomForItsFiles::test_it_trains",
                "tests/integration/test_command.py::TestNoRoomForItsFiles::test_an_error_before_it_trains_ends_its_trial",
            ),
        ),
        Promise(
            "The NVML binding is another package's (pynvml 11.4.1, nvidia-ml-py3)",
            "it is named with the remedy; the training goes on without energy",
            (
                "tests/unit/power/nvml/test_gpu.py::test_a_wrong_binding_is_named_and_nothing_of_it_is_used",
                "tests/unit/power/test_hostile_nvml.py::test_a_training_goes_on_whatever_nvml_answers",
            ),
        ),
        Promise(
            "An energy counter never moves, polled power is 0 W, the range of limits is 0 to 0",
            "energy and MAXPOWER are missing, with the reason; time alone tunes the batch size",
            (
                "tests/unit/power/test_still_readings.py::test_a_counter_that_never_moves",
                "tests/unit/power/test_still_readings.py::test_polled_power_of_nothing",
                "tests/unit/power/test_still_readings.py::test_limits_of_nothing_are_no_max_power",
                "tests/unit/power/test_still_readings.py::test_constant_counters_of_processors",
            ),
        ),
        Promise(
            'A DAG file sets `np.seterr(all="raise")`; the file of a GPU lock was closed',
            "decisions and figures are the same; the training goes on",
            (
                "tests/unit/reports/test_run_figures.py::test_what_a_dag_file_sets_of_numpy_changes_nothing",
                "tests/unit/power/limits/test_gpu_lock.py::test_a_lock_whose_file_was_closed_ends_no_training",
            ),
        ),
        Promise(
            "A settings Variable with a stray comma",
            "no setting is used; pause, pin and reset refuse and say where it is wrong",
            (
                "tests/unit/plugin/test_actions.py::test_a_text_with_a_stray_comma_is_refused_shown_and_never_written_over",
                "tests/unit/store/test_live_settings_change.py::test_a_text_that_is_no_json_object_is_refused_without_the_text_and_with_the_remedy",
            ),
        ),
        Promise(
            "100,000 power points of one attempt",
            "every store, Variable, file and memory keeps 500 at most",
            (
                "tests/unit/store/test_store_points.py::test_every_store_keeps_what_a_page_draws",
                "tests/unit/store/test_store_points.py::test_what_waits_in_a_variable_or_a_file_is_as_little",
                "tests/unit/store/test_store_points.py::test_what_waits_in_memory_for_a_store_that_is_gone_is_as_little",
            ),
        ),
        Promise(
            "`airflow zeus prune`",
            "old attempts lose power points and decisions; nothing else changes",
            (
                "tests/unit/store/test_store_prune.py::test_old_trials_lose_points_and_decision_and_keep_every_figure",
                "tests/unit/store/test_store_prune.py::test_what_the_log_teaches_is_the_same_and_another_job_is_left_alone",
                "tests/unit/plugin/test_pruned.py::test_no_page_says_anything_else_of_costs",
            ),
        ),
        Promise(
            "`airflow db clean` or `airflow db reset` in the run log's database",
            "every row of the log stays",
            ("tests/integration/test_db_clean.py::test_every_row_of_the_log_stays",),
        ),
        Promise(
            "A DAG is deleted in Airflow",
            "log and `airflow zeus report` keep its attempts; the pages leave them out until it is back",
            (
                "tests/unit/plugin/test_overview.py::test_a_dag_that_was_deleted_keeps_its_log_which_the_pages_show_again_when_it_is_back",
            ),
        ),
        Promise(
            "A `ZeusTrial` with `depends_on_past`, after a run that did not succeed",
            "its size is chosen when it may train; no attempt waits open; each run reports its cost",
            (
                "tests/integration/test_trial.py::test_what_depends_on_the_past",
                "tests/system/test_real_scheduler.py::test_a_trial_that_depends_on_the_past_chooses_its_size_when_it_may_train",
            ),
        ),
        Promise(
            "Hundreds of map indexes of one task ask and end at once",
            "each has one row with its own cost",
            (
                "tests/unit/store/sql/test_overlap.py::test_hundreds_of_map_indexes_at_once_have_a_row_each",
            ),
        ),
        Promise(
            "Two processes write the Variables of one job, or of two, at once",
            "one host's take turns; of two hosts one is refused and tries again: nothing told is lost",
            (
                "tests/unit/store/test_variables_overlap.py::test_two_processes_lose_no_run",
                "tests/unit/store/test_store_variable.py::test_a_question_does_not_write_over_an_end_that_came_meanwhile",
            ),
        ),
        Promise(
            "Two hosts, of any names and with clocks a minute apart, use one SQLite file",
            "on shared file systems the log has no write-ahead log; while locks hold, no run is lost",
            (
                "tests/unit/store/sql/test_shared_disk.py::test_two_hosts_whose_clocks_differ_lose_no_run",
                "tests/unit/store/sql/test_shared_disk.py::test_a_new_log_there_has_no_write_ahead_log_and_a_backup_leaves_it_so",
                "tests/unit/store/sql/test_shared_disk.py::test_a_log_that_came_there_leaves_its_write_ahead_log_when_nobody_else_has_it_open",
            ),
        ),
    ),
    "outside": (
        Promise(
            "It fails, skips itself, exits with a status, exceeds its time, or is tried again",
            "each attempt has one row with what it took and why it ended",
            (
                f"{_MEASURE}::test_success_skip_failure_and_exit_have_a_row_each",
                f"{_MEASURE}::test_each_try_and_each_map_index_has_a_row_and_a_time_limit_is_a_failure",
            ),
        ),
        Promise(
            "It is deferred and goes on later, perhaps elsewhere",
            "each part has a row; in all sums they are one run",
            (
                f"{_MEASURE}::test_the_parts_of_a_deferred_task_add_up",
                "tests/unit/store/test_contract_outside.py::test_parts_of_a_deferred_task_are_one_run",
            ),
        ),
        Promise(
            "The store is down or locked when it ends",
            "it waits 2 s, once; the row is kept for that host's next such or Zeus task, or `airflow zeus repair`",
            (
                f"{_MEASURE}::test_a_store_that_is_away_costs_two_seconds_and_the_row_is_stored_later",
                f"{_MEASURE}::test_what_was_kept_is_stored_by_the_next_zeus_task_too",
            ),
        ),
        Promise(
            "Anything of ours fails while it is measured",
            "the task runs and ends as without it",
            (f"{_MEASURE}::test_whatever_fails_of_ours_the_task_runs_as_without_it",),
        ),
        Promise(
            "A heartbeat or the end comes twice, or late",
            "it counts once in every sum",
            (
                "tests/unit/store/test_contract_outside.py::test_a_row_counts_once_however_often_it_reports",
            ),
        ),
        Promise(
            "Its rows become older than 90 days",
            "they are deleted; a sum for each task and day stays, and no page's sum changes",
            (
                "tests/unit/store/test_store_prune.py::test_rows_measured_from_outside_are_folded_into_a_sum_a_day",
            ),
        ),
    ),
}


def play(names: Iterable[str]) -> list[Result]:
    """Run the tests of these parts, slow ones too."""
    nodes = [test for name in names for promise in PROMISES[name] for test in promise.tests]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "slow or not slow",
            f"--junit-xml={report}",
            *nodes,
        ]
        subprocess.run(command, cwd=ROOT, check=False)
        return [_result(case) for case in ElementTree.parse(report).iter("testcase")]


def table(promises: Iterable[Promise], results: Iterable[Result]) -> str:
    """A table in Markdown, a row for each promise; what did not hold says so in its row."""
    known = list(results)
    lines = [f"| {' | '.join(HEAD)} |", "|---|---|"]
    for promise in promises:
        mine = [r for r in known for test in promise.tests if r.test.partition("[")[0] == test]
        lines.append(f"| {promise.case} | {promise.holds}{_not_held(mine)} |")
    return "\n".join(lines)


def _not_held(results: list[Result]) -> str:
    """Nothing if all tests passed, else how they ended."""
    if not results:
        return " (not played)"
    bad = sorted({result.ended for result in results} - {"passed"})
    if not bad:
        return ""
    return f" ({' and '.join(bad)})"


def _result(case: ElementTree.Element) -> Result:
    ended = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    tags = [ended[child.tag] for child in case if child.tag in ended]
    parts = case.get("classname", "").split(".")
    n = next(
        n
        for n in range(len(parts), 0, -1)
        if (ROOT / "/".join(parts[:n])).with_suffix(".py").exists()
    )
    test = "::".join(["/".join(parts[:n]) + ".py", *parts[n:], case.get("name", "")])
    return Result(test, tags[0] if tags else "passed")
