"""Tests that take long and of which others see the same: `make nightly` runs them, `make test` does not.

By file: names of tests, or patterns of names with their parameters, as :func:`fnmatch.fnmatchcase` reads them.
"""

from fnmatch import fnmatchcase

BY_NIGHT = {
    # On few ranks by day, on more by night.
    "executor/test_context_exchange.py": ["*[[]4*"],
    "executor/test_training.py": ["*[[]4*"],
    "executor/test_shared.py": ["*[[]4*", "*[[]8*"],
    "executor/test_autograd.py": ["*[[]4*"],
    "executor/test_dispatch.py": ["*[[]8*"],
    "executor/test_reshard.py": ["*[[]8*"],
    # Ranks that are stopped, whose peers wait for it; those that are killed are by day.
    "executor/test_agreement.py": ["test_a_lost_rank_ends_all_others_in_time[[]stopped*"],
    "executor/test_loader_workers.py": ["*spawn*"],
    # Other trainers of the same dispatcher and sampler.
    "integrations/test_dispatcher_lightning.py": ["test_training_is_the_same_and_resumes_bit_for_bit"],
    "integrations/test_dispatcher_accelerate.py": ["test_training_is_the_same_and_resumes_bit_for_bit"],
    "integrations/test_dispatcher_plain.py": ["test_training_is_the_same_and_resumes_bit_for_bit[[]torch*"],
    "integrations/test_elastic_trainers.py": ["test_begun_on_two_ranks_and_ended_on_three"],
    "integrations/test_sampler_huggingface.py": ["test_killed_and_resumed_in_the_second_epoch*", "test_trls_steps*"],
    # Pages: one of each kind by day.
    "command_line/test_configure_command.py": ["test_the_first_sentence_names_the_best*"],
    "command_line/test_readme.py": ["test_the_advice_that_the_readme_shows"],
    "report/test_page_in_chromium.py": ["*phone*", "*simulation-desktop*", "test_it_prints*", "test_charts*dark]",
                                        "test_screenshots*light]"],
    # Searches and properties of many cases.
    "test_kernels.py": ["test_compiled_and_plain_python_give_the_same_plans"],
    "test_solver_bounds.py": ["test_each_bound_binds_somewhere[[]filler*"],
    "test_idle_ranks.py": ["test_few_items_on_many_ranks[[]nodes]"],
    "pipeline/test_schedule_pipeline.py": ["test_mostly_optimal*"],
    "pipeline/test_pipeline_plans.py": ["test_makespans_are_what_events_say_and_files_hold_them"],
    "context/test_context_shards.py": ["test_no_work_above_the_cap*", "test_tokens_stay_exact*"],
    "deferral/test_deferral.py": ["test_exact_counts_and_tokens*"],
    "deferral/test_defer_samples.py": ["test_no_step_has_more*"],
    "orchestrate/test_long_short_phases.py": ["test_caps_are_kept_and_no_plan_that_keeps_them*"],
    "balance/test_cuts.py": ["test_another_cut_is_dispatched"],
    "balance/test_stream.py": ["test_a_stateful_loader_saves_the_place_of_its_worker"],
    "balance/test_shuffle.py": ["test_every_row_comes_everywhere_as_often"],
    "fuzz/test_command_lines.py": ["test_random_command_lines[[][1-9]*]", "test_command_lines_as_processes"],
    "fuzz/test_step_files.py": ["test_random_step_files[[][3-9]]"],
    # Advice on whole logs.
    "advice/test_advise.py": ["test_a_log_of_few_steps*", "test_a_sampled_log_says*", "test_what_it_says_is_the_same*"],
    "simulate/test_configure.py": ["test_the_winner*[[]4-generators1]"],
    # Tens of layers of each family, as they are by default; tiny ones are by day.
    "cost/test_families.py": ["test_parameters_are_those*"],
    # Processes, stores and memory, each looked at in several ways.
    "balance/test_processes.py": ["*driver]", "*interrupt*", "test_workers_that_cannot_begin*"],
    "io/test_stores.py": ["test_slow_answers*", "test_a_write_that_fails*", "*many/*", "test_processes_write*"],
    "test_jit.py": ["test_the_folder_of_others*", "test_processes_that_start_together*", "test_a_file_that_is_cut*",
                    "test_machine_code_for_another*"],
    # What is planned by the clock.
    "golden/test_golden.py": ["*by the clock*"],
}  # fmt: skip


def is_by_night(test: str) -> bool:
    """Whether a test, ``tests/folder/file.py::name[parameters]``, is for the night."""
    file, _, name = test.partition("::")
    return any(fnmatchcase(name, pattern) for pattern in BY_NIGHT.get(file.removeprefix("tests/"), ()))
