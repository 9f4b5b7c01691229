# Copyright The Lightning AI team.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
import importlib
import logging
import re
import sys
import warnings
from textwrap import indent
from types import ModuleType

import pytest
import torch

from lightning.fabric.strategies.launchers.global_state import _capture, _restore, _restore_torch, _torch_settings
from lightning.fabric.strategies.launchers.multiprocessing import _GlobalStateSnapshot
from tests_fabric.helpers.needs import needs
from tests_fabric.helpers.scripts import RECORD, make_script, run_python, run_script, under_main_guard
from tests_fabric.strategies.launchers.conftest import leave_nothing_behind  # noqa: F401

pytestmark = pytest.mark.usefixtures("leave_nothing_behind")

# How a program changes each setting. One line for each; `test_every_setting_has_a_line` wants them all.
CHANGES = {
    "torch.get_default_dtype": "torch.set_default_dtype(torch.float64)",
    "torch.are_deterministic_algorithms_enabled": "torch.use_deterministic_algorithms(True, warn_only=True)",
    "torch.utils.deterministic.fill_uninitialized_memory": (
        "torch.utils.deterministic.fill_uninitialized_memory = False"
    ),
    "torch._inductor.config.deterministic": None,  # by the line for the deterministic algorithms
    "torch.is_anomaly_enabled": "torch.autograd.set_detect_anomaly(True, check_nan=False)",
    "torch.is_warn_always_enabled": "torch.set_warn_always(True)",
    "torch.set_flush_denormal": "torch.set_flush_denormal(True)",
    "torch.sparse.check_sparse_tensor_invariants.is_enabled": "torch.sparse.check_sparse_tensor_invariants.enable()",
    "torch.get_autocast_dtype('cpu')": "torch.set_autocast_dtype('cpu', torch.float16)",
    "torch.get_autocast_dtype('cuda')": "torch.set_autocast_dtype('cuda', torch.bfloat16)",
    "torch.get_autocast_dtype('xpu')": "torch.set_autocast_dtype('xpu', torch.bfloat16)",
    "torch.get_autocast_dtype('mps')": "torch.set_autocast_dtype('mps', torch.bfloat16)",
    "torch.multiprocessing.get_sharing_strategy": "torch.multiprocessing.set_sharing_strategy('file_system')",
    "torch.get_float32_matmul_precision": "torch.set_float32_matmul_precision('medium')",
    "torch.backends.cuda.matmul.allow_tf32": None,  # by the line above
    "torch.backends.cudnn.allow_tf32": "backends.cudnn.allow_tf32 = False",
    "torch.backends.mkldnn.allow_tf32": "backends.mkldnn.allow_tf32 = True",
    "torch.backends.fp32_precision": "backends.fp32_precision = 'ieee'",
    "torch.backends.cudnn.fp32_precision": "backends.cudnn.fp32_precision = 'tf32'",
    "torch.backends.mkldnn.fp32_precision": "backends.mkldnn.fp32_precision = 'tf32'",
    "torch.backends.cuda.matmul.fp32_precision": "backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.cudnn.conv.fp32_precision": "backends.cudnn.conv.fp32_precision = 'ieee'",
    "torch.backends.cudnn.rnn.fp32_precision": "backends.cudnn.rnn.fp32_precision = 'ieee'",
    "torch.backends.mkldnn.matmul.fp32_precision": "backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "torch.backends.mkldnn.conv.fp32_precision": "backends.mkldnn.conv.fp32_precision = 'bf16'",
    "torch.backends.mkldnn.rnn.fp32_precision": "backends.mkldnn.rnn.fp32_precision = 'bf16'",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
        "backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False"
    ),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        "backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False"
    ),
    "torch.backends.cuda.matmul.allow_fp16_accumulation": "backends.cuda.matmul.allow_fp16_accumulation = True",
    "torch.backends.cuda.flash_sdp_enabled": "backends.cuda.enable_flash_sdp(False)",
    "torch.backends.cuda.mem_efficient_sdp_enabled": "backends.cuda.enable_mem_efficient_sdp(False)",
    "torch.backends.cuda.math_sdp_enabled": "backends.cuda.enable_math_sdp(False)",
    "torch.backends.cuda.cudnn_sdp_enabled": "backends.cuda.enable_cudnn_sdp(False)",
    "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed": (
        "backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)"
    ),
    "torch.backends.cuda.preferred_linalg_library": "backends.cuda.preferred_linalg_library('cusolver')",
    "torch.backends.cuda.preferred_blas_library": "backends.cuda.preferred_blas_library('cublaslt')",
    "torch.backends.cuda.preferred_rocm_fa_library": "backends.cuda.preferred_rocm_fa_library('aotriton')",
    "torch.backends.cudnn.enabled": "backends.cudnn.enabled = False",
    "torch.backends.cudnn.benchmark": "backends.cudnn.benchmark = True",
    "torch.backends.cudnn.benchmark_limit": "backends.cudnn.benchmark_limit = 5",
    "torch.backends.cudnn.deterministic": "backends.cudnn.deterministic = True",
    "torch.backends.cudnn.depthwise_kernel": "backends.cudnn.depthwise_kernel = 'cudnn'",
    "torch.backends.miopen.immediate": "backends.miopen.immediate = True",
    "torch.backends.mkldnn.enabled": "backends.mkldnn.enabled = False",
    "torch.backends.mkldnn.deterministic": "backends.mkldnn.deterministic = True",
    "torch.backends.mha.get_fastpath_enabled": "backends.mha.set_fastpath_enabled(False)",
    "torch._C._get_nnpack_enabled": "backends.nnpack.set_flags(False)",
    "torch.backends.opt_einsum.enabled": "backends.opt_einsum.enabled = False",
    "torch.backends.opt_einsum.strategy": "backends.opt_einsum.strategy = 'greedy'",
    "torch.backends.quantized.engine": (
        "backends.quantized.engine = [*set(backends.quantized.supported_engines) - {backends.quantized.engine}][0]"
    ),
    "torch.__future__.get_overwrite_module_params_on_conversion": (
        "torch.__future__.set_overwrite_module_params_on_conversion(True)"
    ),
    "torch.__future__.get_swap_module_params_on_conversion": (
        "torch.__future__.set_swap_module_params_on_conversion(True)"
    ),
    "torch.serialization.get_crc32_options": "torch.serialization.set_crc32_options(False)",
    "torch.serialization.get_default_mmap_options": "torch.serialization.set_default_mmap_options(mmap.MAP_SHARED)",
}
# A build of torch for CUDA has the first three of them, one for CPUs keeps its own; the last depend on a package
MAY_STAY = {
    "torch.backends.cuda.preferred_linalg_library",
    "torch.backends.cuda.preferred_blas_library",
    "torch.backends.cuda.preferred_rocm_fa_library",
    "torch.backends.opt_einsum.enabled",
    "torch.backends.opt_einsum.strategy",
}

SCRIPT = f"""{RECORD}
import importlib
import logging
import multiprocessing
import sys
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from lightning.fabric.strategies.launchers.global_state import _capture
from lightning.fabric.utilities.rank_zero import rank_zero_only


class SomeWarning(UserWarning):
    pass


def record_state(event):
    state = _capture()
    # without the module, which is `__mp_main__` in a child
    filters = [filter[:2] + filter[3:] for filter in state["warning_filters"] if "SomeWarning" in filter]
    record(event, **dict(state, warning_filters=filters, seed=torch.initial_seed()))


class States(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        importlib.import_module("torch._inductor.config")  # the change of its determinism has waited for that
        record_state("worker")
        return 0


class Unpickled(States):
    def __getstate__(self):
        return {{"is": "not empty"}}

    def __setstate__(self, state):
        record("unpickled", dtype=str(torch.get_default_dtype()))


def use_workers(start_method):
    list(DataLoader(States(), num_workers=1, multiprocessing_context=start_method))
"""


def test_every_setting_has_a_line():
    """The test below changes every setting that there is."""
    assert {setting.name for setting in _torch_settings()} == set(CHANGES)


@pytest.mark.parametrize(
    "start_method",
    [
        None,
        "spawn",
        pytest.param("forkserver", marks=needs(start_method="forkserver")),
        pytest.param("fork", marks=needs(start_method="fork")),
    ],
)
def test_every_setting_arrives_in_ranks_and_workers(start_method, tmp_path):
    """What the main process has set is there in a rank and in its worker, whether they are forked or not.

    Without a start method, the main process is the rank.

    """
    changes = indent("\n".join(f"change({line!r})" for line in CHANGES.values() if line), "    ").strip()
    body = f"""
    record_state("default")
    {changes}
    warnings.filterwarnings("error", "some (message)+", SomeWarning, "some.module", 7)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch.utilities").setLevel(logging.DEBUG)
    rank_zero_only.rank = 3
    torch.manual_seed(17)
    record_state("main")
    start_method = {start_method!r}
    strategy = "auto" if start_method is None else DDPStrategy(start_method=start_method)
    fabric = Fabric(accelerator="cpu", devices=1, strategy=strategy)
    fabric.launch(rank, start_method or "spawn")
    """
    definitions = """
    import mmap
    from torch import backends

    def change(line):
        try:
            exec(line)
        except (AssertionError, AttributeError, IndexError, RuntimeError, ValueError) as error:
            print(line, error)

    def rank(fabric, start_method):
        record_state("rank")
        # what this process has set after its start counts for its worker
        torch.set_default_dtype(torch.float16)
        rank_zero_only.rank = 5
        use_workers(start_method)
    """
    run = run_script(tmp_path, SCRIPT, definitions, under_main_guard(body))
    assert run.returncode == 0, run.output
    [default], [main], [rank], [worker] = (run.of(event) for event in ("default", "main", "rank", "worker"))
    in_place = main["pid"] == rank["pid"]
    assert in_place == (start_method is None)

    # Each change was one: else this test would show nothing
    same = {name for name, value in main["torch"].items() if value == default["torch"].get(name)}
    assert same <= MAY_STAY | _settings_without_choice()

    assert worker["torch"] == {**main["torch"], "torch.get_default_dtype": "float16"}
    main["torch"].pop("torch._inductor.config.deterministic", None)  # this rank does not import it
    rank["torch"].pop("torch._inductor.config.deterministic", None)
    assert rank["torch"] == main["torch"]
    for state in (rank, worker):
        assert state["warning_filters"] == main["warning_filters"] != []
        assert state["logger_levels"] == main["logger_levels"]
    assert main["logger_levels"]["lightning.fabric"] == logging.ERROR
    assert worker["rank"] == 5
    assert rank["seed"] == 17
    assert worker["seed"] != 17  # workers get their seeds from the loader


def _settings_without_choice():
    choices = {
        "torch.multiprocessing.get_sharing_strategy": torch.multiprocessing.get_all_sharing_strategies(),
        "torch.backends.quantized.engine": torch.backends.quantized.supported_engines,
    }
    return {name for name, values in choices.items() if len(values) == 1}


def test_what_the_rank_has_set_wins(tmp_path):
    """A worker ends up in the state of its rank, not in what the script and the modules set that it imports."""
    (tmp_path / "data.py").write_text(
        "import torch\n\ntorch.set_default_dtype(torch.float16)\ntorch.backends.cudnn.benchmark = True\n\n"
        "def init_worker(worker_id):\n    pass\n"
    )
    body = """
    torch.set_default_dtype(torch.float64)
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    import data

    torch.set_default_dtype(torch.bfloat16)
    torch.backends.cudnn.benchmark = False
    # the worker imports `data` when it has imported this script already
    list(DataLoader(Unpickled(), num_workers=1, multiprocessing_context="spawn", worker_init_fn=data.init_worker))
    """
    run = run_script(tmp_path, SCRIPT, body)
    assert run.returncode == 0, run.output
    assert [record["dtype"] for record in run.of("unpickled")] == ["torch.bfloat16"]
    [worker] = run.of("worker")
    assert worker["torch"]["torch.get_default_dtype"] == "bfloat16"
    assert worker["torch"]["torch.backends.cudnn.benchmark"] is False


def test_state_is_there_without_the_script(tmp_path):
    """The state arrives where children do not import the main module, before the dataset is unpickled."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "data.py").write_text(make_script(SCRIPT))
    main = """
    from package.data import *

    torch.set_default_dtype(torch.float64)
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    list(DataLoader(Unpickled(), num_workers=1, multiprocessing_context="spawn"))
    """
    (package / "__main__.py").write_text(make_script(main))
    run = run_python(["-m", "package"], tmp_path, tmp_path / "records")
    assert run.returncode == 0, run.output
    assert [record["torch"]["torch.get_default_dtype"] for record in run.of("worker")] == ["float64"]
    assert [record["dtype"] for record in run.of("unpickled")] == ["torch.float64"]


def test_child_that_does_without_torch(tmp_path):
    """A child that does not import torch is not made to; once it does, it has its parent's settings."""
    (tmp_path / "child.py").write_text(f"""{RECORD}
import logging
import sys
import warnings


def child():
    record("before", torch="torch" in sys.modules, inspect="inspect" in sys.modules)
    warnings.filterwarnings("ignore", "of the child")
    record("levels", level=logging.getLogger("lightning.fabric").level, filters=len(warnings.filters))
    import torch

    record("after", dtype=str(torch.get_default_dtype()), filters=len(warnings.filters))
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    loaders = [torch.__loader__, rank_zero_only.__globals__["__loader__"]]
    record("rank", rank=rank_zero_only.rank, level=logging.getLogger("lightning.fabric").level)
    record("loaders", wrapped=["exec_module" in vars(loader) for loader in loaders])
""")
    body = """
    import logging

    import torch
    from lightning.fabric import Fabric
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    torch.set_default_dtype(torch.float64)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    rank_zero_only.rank = 5
    process = multiprocessing.get_context("spawn").Process(target=child.child)
    process.start()
    process.join()
    sys.exit(process.exitcode)
    """
    run = run_script(tmp_path, "import multiprocessing\nimport sys\n\nimport child", under_main_guard(body))
    assert run.returncode == 0, run.output
    [before], [levels], [after], [rank] = (run.of(event) for event in ("before", "levels", "after", "rank"))
    assert not before["torch"]
    assert levels["level"] == logging.ERROR
    assert after["dtype"] == "torch.float64"
    assert after["filters"] >= levels["filters"]  # what the child has set itself stays
    assert rank["rank"] == 5
    assert rank["level"] == logging.ERROR
    assert run.of("loaders")[0]["wrapped"] == [False, False]


def test_both_interfaces_to_the_precision_of_float32(tmp_path):
    """What a program has set with both interfaces arrives, although torch does not tell it through the older one."""
    body = """
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("medium")
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.backends.mkldnn.matmul.fp32_precision = "tf32"
    refusing = []
    for name in ("_get_float32_matmul_precision", "_get_cublas_allow_tf32", "_get_cudnn_allow_tf32"):
        try:
            getattr(torch._C, name)()
        except RuntimeError:
            refusing.append(name)
    record_state("main")
    record("refusing", names=refusing)
    fabric = Fabric(accelerator="cpu", devices=1, strategy="ddp_spawn")
    fabric.launch(rank)
    """
    definitions = """
    def rank(fabric):
        record_state("rank")
        use_workers("spawn")
    """
    run = run_script(tmp_path, SCRIPT, definitions, under_main_guard(body))
    assert run.returncode == 0, run.output
    [main], [rank], [worker], [refusing] = (run.of(event) for event in ("main", "rank", "worker", "refusing"))
    assert len(refusing["names"]) == 3
    for state in (main, rank, worker):
        state["torch"].pop("torch._inductor.config.deterministic", None)  # not all of them import it
    assert rank["torch"] == main["torch"]
    assert worker["torch"] == main["torch"]
    assert main["torch"]["torch.backends.cuda.matmul.fp32_precision"] == "ieee"


def test_setting_that_torch_refuses(tmp_path):
    """A setting that the child's torch refuses is skipped with a warning; the others arrive, and no process dies.

    Parent and child have the same torch, so the parent is made to hand over what no torch has.

    """
    body = """
    from lightning.fabric.strategies.launchers import global_state

    capture = global_state._capture_torch
    global_state._capture_torch = lambda: {**capture(), "torch.multiprocessing.get_sharing_strategy": "pigeons"}
    torch.set_default_dtype(torch.float64)
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    use_workers("spawn")
    """
    run = run_script(tmp_path, SCRIPT, under_main_guard(body))
    assert run.returncode == 0, run.output
    assert [record["torch"]["torch.get_default_dtype"] for record in run.of("worker")] == ["float64"]
    assert run.output.count("torch has refused these settings here: `torch.multiprocessing.get_sharing_strategy`") == 1


def test_what_torch_does_not_have_is_left_out(monkeypatch):
    """A release of torch that has next to no settings is no reason to fail, when they are captured or restored."""
    released_long_ago = ModuleType("torch")
    released_long_ago.set_default_dtype = released_long_ago.__dict__.setdefault
    released_long_ago.get_default_dtype = lambda: "torch.float32"
    state = _capture()
    monkeypatch.setitem(sys.modules, "torch", released_long_ago)
    monkeypatch.delitem(sys.modules, "torch._inductor.config", raising=False)
    assert _capture()["torch"] == {"torch.get_default_dtype": "float32", "torch.set_flush_denormal": False}
    with pytest.warns(UserWarning, match="`torch.backends.cudnn.benchmark` = False"):
        _restore(state)


def test_compiler_is_set_right_at_the_moment_of_its_import(monkeypatch):
    """A module that is restored after its import is not known to its package yet."""
    config = importlib.import_module("torch._inductor.config")
    monkeypatch.delattr("torch._inductor.config")
    monkeypatch.setattr(config, "deterministic", True)
    assert _restore_torch({"torch._inductor.config.deterministic": False}, prefix="torch._inductor.config") == []
    assert config.deterministic is False


def test_snapshot_of_another_version():
    """A snapshot with other contents than this version's is refused as a whole."""
    state = _capture()
    for settings in ({**state, "torch": {**state["torch"], "torch.no_such_setting": 1}}, {**state, "more": 1}):
        with pytest.raises(RuntimeError, match="run different versions of Lightning"):
            _GlobalStateSnapshot(settings=settings, rng_states={}).restore()
    older = _GlobalStateSnapshot(settings=state, rng_states={})
    older.cudnn_benchmark = True
    with pytest.raises(RuntimeError, match="run different versions of Lightning"):
        older.restore()


def test_warning_filters_are_replaced():
    """Filters arrive in their order; one for a category that this process has not imported is left out."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.filterwarnings("ignore", "one (or) more", FutureWarning, "torch.nn", 3)
        warnings.simplefilter("error", UserWarning)
        state = _capture()
        filters = list(warnings.filters)
        unknown = ("ignore", None, "no.such.module", "SomeWarning", None, 0)
        warnings.simplefilter("always")
        _restore({**state, "warning_filters": [unknown, *state["warning_filters"]]})
        assert warnings.filters == filters
        assert filters[1][1:4] == (re.compile("one (or) more", re.IGNORECASE), FutureWarning, re.compile("torch.nn"))
