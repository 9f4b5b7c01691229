"""Which tests a run has that does not ask for all.

Under Wine each process takes several seconds to import torch, and a test starts up to ten: all tests take most of an
hour. So a run has one test of each kind of launch and of each kind of thing that differs between Windows and Linux;
and all tests that start no process that imports torch.

"""

ALL = ("tests/tests_fabric", "tests/tests_pytorch", "tests/tests_patchset")

_FABRIC = "tests/tests_fabric/strategies/launchers/test_inheritance.py"
_FORK_SERVER = "tests/tests_fabric/strategies/launchers/test_fork_server.py"
_PORT = "tests/tests_fabric/strategies/launchers/test_main_port.py"
_STATE = "tests/tests_fabric/strategies/launchers/test_global_state.py"
_LIFETIME = "tests/tests_fabric/strategies/launchers/test_lifetime.py"
_FAILURES = "tests/tests_fabric/strategies/launchers/test_failures.py"
_INTERRUPTS = "tests/tests_pytorch/strategies/launchers/test_lifetime_with_trainer.py"
_TRAINER = "tests/tests_pytorch/strategies/launchers/test_inheritance_with_trainer.py"

SELECTION = (
    # A script without a guard and with a subprocess launcher: #17777 itself
    f"{_TRAINER}::test_trainer_trains_with_workers[ddp-spawn-data_in_script]",
    # One device, under a main guard, as a module, from a path with letters that are not ASCII
    f"{_TRAINER}::test_trainer_trains_with_workers[one-spawn-guarded-as_module-odd_path-persistent-data_in_script]",
    # Processes of other kinds than workers
    f"{_FABRIC}::test_pool_and_manager_after_the_launch",
    # Messages with paths and lines
    f"{_FABRIC}::test_script_changes_between_launch_and_worker[changed]",
    # Main modules that are found in another way
    f"{_FABRIC}::test_main_module_without_a_file[stdin]",
    # The main port: how sockets are shared and passed on, who holds a port, default address
    f"{_PORT}::test_port_is_owned_from_choice_to_use[popen]",
    f"{_PORT}::test_taken_port_on_one_node[spawn]",
    f"{_PORT}::test_process_group_is_made_again[spawn]",
    f"{_PORT}::test_port_is_free_after_ctrl_c",
    "tests/tests_fabric/utilities",
    # The state of the parent
    f"{_STATE}::test_every_setting_arrives_in_ranks_and_workers[spawn]",
    f"{_STATE}::test_child_that_does_without_torch",
    # How processes end, and what the user reads then
    f"{_LIFETIME}::test_all_end_with_the_launcher[popen-spawn]",
    f"{_FAILURES}::test_error_at_the_start_of_a_worker_comes_last",
    f"{_FAILURES}::test_error_of_pickling_comes_last",
    f"{_INTERRUPTS}::test_interrupt_ends_everything_in_order[ddp-break]",
    # Without processes that import torch
    f"{_TRAINER}::test_guard_is_outside_of_the_error_handling",
    f"{_LIFETIME}::test_process_ends_at_once_if_the_other_has_ended_before",
    f"{_LIFETIME}::test_later_process_with_the_same_identifier_is_not_waited_for_on_windows",
    f"{_FAILURES}::test_process_that_is_cut_off_knows_it",
    f"{_FAILURES}::test_describe_exit",
    f"{_FAILURES}::test_notes",
    f"{_FABRIC}::test_process_that_is_left_behind",
    f"{_FABRIC}::test_every_pair_of_values_occurs",
    f"{_FABRIC}::test_inheritance_needs_only_the_standard_library",
    f"{_FABRIC}::test_enabling_twice_is_enabling_once",
    f"{_FABRIC}::test_ipython_is_not_imported_in_children",
    f"{_FABRIC}::test_main_script_without_inheritance_does_nothing",
    f"{_FABRIC}::test_not_a_dataloader_worker",
    f"{_STATE}::test_every_setting_has_a_line",
    f"{_STATE}::test_snapshot_of_another_version",
    f"{_STATE}::test_warning_filters_are_replaced",
    f"{_STATE}::test_what_torch_does_not_have_is_left_out",
    # The command line; most of it needs git, which the package index does not have for Windows
    "tests/tests_patchset",
    # Skipped
    f"{_FABRIC}::test_outer_launcher",
    _FORK_SERVER,
)
