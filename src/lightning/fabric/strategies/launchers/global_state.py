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
"""What a program has set for its whole process, and what its spawned processes therefore have to be handed.

Processes that the inheritance reaches run this file by its path, whether or not they import Lightning or torch: nothing
but the standard library is imported at the top, and nothing of it is from Lightning.

"""

import logging
import re
import sys
import warnings
from functools import lru_cache
from operator import attrgetter
from types import ModuleType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

_COMPILER = "torch._inductor.config"
_SERIALIZATION = "torch.utils.serialization.config"
_RANK_ZERO = "lightning_utilities.core.rank_zero"
_LIGHTNING = ("lightning", "lightning.fabric", "lightning.pytorch")  # each sets the level of its logger

# When one of these is imported, there is more that can be restored than before
MODULES_WITH_STATE = ("torch", _COMPILER, _RANK_ZERO, *_LIGHTNING)

_refused: Set[str] = set()  # what torch has refused in this process so far


class _Setting(NamedTuple):
    """A setting of torch.

    Args:
        name: The name under which it is handed over. Where there is one, the name by which a program reads it.
        get: Returns the value, as an object of a built-in type. Raises :class:`AttributeError` or :class:`KeyError`
            where the installed version of torch does not have the setting.
        set: Sets the value.

    """

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], None]


@lru_cache(maxsize=None)
def _torch_settings() -> List[_Setting]:
    """Return what is handed over of torch, in the order in which it has to be set.

    These are the values that torch has setters for and that hold for the whole process. Left out are

    - the number of threads, which Lightning sets for a rank and :class:`~torch.utils.data.DataLoader` for a worker,
    - what belongs to a block of code: whether gradients, inference mode or autocast are enabled,
    - the default device and all that is set for a device or needs a context on it (current device, memory limits,
      workspaces, plan caches, sync debug mode): devices are for the strategy to choose, and workers must not use one,
    - what holds objects of the program, which a child might be unable to import: hooks of modules, tensors and loading,
      safe globals, and the operators that :mod:`torch.backends.python_native` replaces,
    - what changes no result: print options, the folder of :mod:`torch.hub`, logging and configuration of the compiler
      except its determinism,
    - what is set through the environment, because children inherit that.

    """
    return [
        _Setting("torch.get_default_dtype", _get_default_dtype, _set_default_dtype),
        _Setting("torch.are_deterministic_algorithms_enabled", _get_deterministic, _set_deterministic),
        _attribute("torch.utils.deterministic.fill_uninitialized_memory"),
        _attribute("torch._inductor.config.deterministic"),
        _Setting("torch.is_anomaly_enabled", _get_anomaly_mode, _set_anomaly_mode),
        _functions("torch.is_warn_always_enabled", "torch.set_warn_always"),
        _Setting("torch.set_flush_denormal", _is_flushing_denormals, _call("torch.set_flush_denormal")),
        _Setting(
            "torch.sparse.check_sparse_tensor_invariants.is_enabled",
            _call("torch.sparse.check_sparse_tensor_invariants.is_enabled"),
            _check_sparse_tensors,
        ),
        *(_autocast_dtype(device_type) for device_type in ("cpu", "cuda", "xpu", "mps")),
        _functions("torch.multiprocessing.get_sharing_strategy", "torch.multiprocessing.set_sharing_strategy"),
        # Precision of float32. Since torch 2.9 there are two interfaces, and the older one changes the newer one's
        # values. So the older goes first, and of the newer what others fall back on.
        _Setting(
            "torch.get_float32_matmul_precision",
            _get_matmul_precision,
            _call("torch.set_float32_matmul_precision"),
        ),
        _attribute("torch.backends.cuda.matmul.allow_tf32"),
        _Setting("torch.backends.cudnn.allow_tf32", _get_cudnn_allow_tf32, _assign("torch.backends.cudnn.allow_tf32")),
        _attribute("torch.backends.mkldnn.allow_tf32"),
        _attribute("torch.backends.fp32_precision"),
        _attribute("torch.backends.cudnn.fp32_precision"),
        _attribute("torch.backends.mkldnn.fp32_precision"),
        _attribute("torch.backends.cuda.matmul.fp32_precision"),
        _attribute("torch.backends.cudnn.conv.fp32_precision"),
        _attribute("torch.backends.cudnn.rnn.fp32_precision"),
        _attribute("torch.backends.mkldnn.matmul.fp32_precision"),
        _attribute("torch.backends.mkldnn.conv.fp32_precision"),
        _attribute("torch.backends.mkldnn.rnn.fp32_precision"),
        # Other properties of backends
        _Setting(
            "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
            _call("torch._C._get_cublas_allow_fp16_reduced_precision_reduction"),
            _assign("torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction"),
        ),
        _Setting(
            "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
            _call("torch._C._get_cublas_allow_bf16_reduced_precision_reduction"),
            _assign("torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction"),
        ),
        _attribute("torch.backends.cuda.matmul.allow_fp16_accumulation"),
        _functions("torch.backends.cuda.flash_sdp_enabled", "torch.backends.cuda.enable_flash_sdp"),
        _functions("torch.backends.cuda.mem_efficient_sdp_enabled", "torch.backends.cuda.enable_mem_efficient_sdp"),
        _functions("torch.backends.cuda.math_sdp_enabled", "torch.backends.cuda.enable_math_sdp"),
        _functions("torch.backends.cuda.cudnn_sdp_enabled", "torch.backends.cuda.enable_cudnn_sdp"),
        _functions(
            "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
            "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp",
        ),
        _preferred_library("torch.backends.cuda.preferred_linalg_library"),
        _preferred_library("torch.backends.cuda.preferred_blas_library"),
        _preferred_library("torch.backends.cuda.preferred_rocm_fa_library"),
        _attribute("torch.backends.cudnn.enabled"),
        _attribute("torch.backends.cudnn.benchmark"),
        _attribute("torch.backends.cudnn.benchmark_limit"),
        _attribute("torch.backends.cudnn.deterministic"),
        _attribute("torch.backends.cudnn.depthwise_kernel"),
        _attribute("torch.backends.miopen.immediate"),
        _attribute("torch.backends.mkldnn.enabled"),
        _attribute("torch.backends.mkldnn.deterministic"),
        _functions("torch.backends.mha.get_fastpath_enabled", "torch.backends.mha.set_fastpath_enabled"),
        _functions("torch._C._get_nnpack_enabled", "torch._C._set_nnpack_enabled"),
        _attribute("torch.backends.opt_einsum.enabled"),
        _attribute("torch.backends.opt_einsum.strategy"),
        _attribute("torch.backends.quantized.engine"),
        *(
            _functions(f"torch.__future__.get_{name}", f"torch.__future__.set_{name}")
            for name in ("overwrite_module_params_on_conversion", "swap_module_params_on_conversion")
        ),
        *(
            _functions(f"torch.serialization.get_{name}", f"torch.serialization.set_{name}", needs=_SERIALIZATION)
            for name in ("crc32_options", "default_mmap_options")
        ),
    ]


def _capture(inherited: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """Capture all but the states of random number generators, as objects of built-in types.

    Runs in every process that starts another one: the launcher, and a rank for each of its workers. Never fails: what
    the installed version of torch does not have, or refuses to tell, is left out.

    Args:
        inherited: What this process was handed itself, if it was. What of it still waits for an import is handed on.

    """
    # local import: this file also runs in processes that do without Lightning
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    return {
        "torch": {**_capture_torch(), **_waiting(inherited)},
        "warning_filters": _encode_filters(),
        "logger_levels": _get_logger_levels(),
        "rank": rank_zero_only.rank,
    }


def _restore(state: Dict[str, Any], module: Optional[str] = None, warn: bool = True) -> None:
    """Restore what :func:`_capture` has returned, as far as it concerns modules that are imported already.

    Runs in a rank, a worker, or any other process that such a process has started.

    Args:
        state: What was captured.
        module: Restore only what depends on this module, one of :data:`MODULES_WITH_STATE`.
        warn: Whether to warn about settings that torch refuses.

    """
    refused = []
    if "torch" in sys.modules and module in (None, "torch", _COMPILER):
        refused = _restore_torch(state["torch"], prefix=module or "torch")
    if module is None:
        _restore_filters(state["warning_filters"])
    for name, level in state["logger_levels"].items():
        logger = logging.getLogger(name)
        # Only what differs: a new level makes Python go through all loggers
        if logger.level != level and (module is None or _is_within(name, module)):
            logger.setLevel(level)
    if module in (None, _RANK_ZERO) and hasattr(sys.modules.get(_RANK_ZERO), "rank_zero_only"):
        sys.modules[_RANK_ZERO].rank_zero_only.rank = state["rank"]
    news = [setting for setting in refused if setting not in _refused]
    _refused.update(news)
    if news and warn:
        warnings.warn(
            "This process was to start in the state of its parent, but torch has refused these settings here:"
            f" {'; '.join(news)}. The process goes on with torch's own values.",
            stacklevel=2,
        )


def _is_known(state: Dict[str, Any]) -> bool:
    """Whether a state that another process has captured can be restored by this version of the module."""
    names = {setting.name for setting in _torch_settings()}
    return set(state) == {"torch", "warning_filters", "logger_levels", "rank"} and names.issuperset(state["torch"])


def _waiting(inherited: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    if inherited is None or _COMPILER in sys.modules:
        return {}
    return {name: value for name, value in inherited["torch"].items() if name.startswith(_COMPILER)}


def _capture_torch() -> Dict[str, Any]:
    _read_silently()
    values = {setting.name: _get(setting) for setting in _torch_settings()}
    return {name: value for name, value in values.items() if value is not None}


@lru_cache(maxsize=None)
def _read_silently() -> None:
    """Read all settings once, so that torch 2.9 says now, and unheard, that some of their getters are deprecated.

    Only once, because Python forgets at this which warnings it has shown.

    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for setting in _torch_settings():
            _get(setting)


def _restore_torch(values: Dict[str, Any], prefix: str) -> List[str]:
    """Set what differs, and return what torch refused, with its reasons."""
    refused = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the parent has heard already that what it set is deprecated
        for setting in _torch_settings():
            if setting.name not in values or not setting.name.startswith(prefix):
                continue
            if setting.name.startswith(_COMPILER) and _COMPILER not in sys.modules:
                continue  # restored when it is imported
            value = values[setting.name]
            if _get(setting) == value:
                continue
            try:
                setting.set(value)
            except Exception as error:
                reason = str(error).strip().split("\n")[0]
                refused.append(f"`{setting.name}` = {value!r} ({type(error).__name__}: {reason})")
    return refused


def _get(setting: _Setting) -> Any:
    """Return the value of a setting, or ``None`` if torch does not have it, does not use it or does not tell it."""
    try:
        return setting.get()
    except Exception:
        return None


# Getters and setters


def _finder(name: str) -> Callable[[], Any]:
    """Return a function that finds a thing of torch by its name, at the time of the call."""
    find = attrgetter(name.partition(".")[2])
    if not name.startswith(_COMPILER):
        return lambda: find(sys.modules["torch"])
    # A module that has just been imported is not an attribute of its package yet
    attribute = name[len(_COMPILER) + 1 :]
    return lambda: getattr(sys.modules[_COMPILER], attribute) if attribute else sys.modules[_COMPILER]


def _call(name: str) -> Callable[..., Any]:
    find = _finder(name)
    return lambda *args: find()(*args)


def _assign(name: str) -> Callable[[Any], None]:
    owner, _, attribute = name.rpartition(".")
    find_owner = _finder(owner)
    return lambda value: setattr(find_owner(), attribute, value)


def _attribute(name: str) -> _Setting:
    return _Setting(name, _finder(name), _assign(name))


def _functions(getter: str, setter: str, needs: str = "torch") -> _Setting:
    get = _call(getter)
    # As long as a module is not imported, nobody has changed what it holds
    return _Setting(getter, lambda: get() if needs in sys.modules else None, _call(setter))


def _preferred_library(name: str) -> _Setting:
    call = _call(name)
    # The names of the members are not those that the function takes as text
    return _Setting(name, lambda: call().name, lambda value: call(type(call()).__members__[value]))


def _dtype_name(dtype: Any) -> str:
    return str(dtype).partition(".")[2]


def _get_default_dtype() -> str:
    import torch

    return _dtype_name(torch.get_default_dtype())


def _set_default_dtype(name: str) -> None:
    import torch

    torch.set_default_dtype(getattr(torch, name))


def _get_deterministic() -> Tuple[bool, bool]:
    import torch

    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: Tuple[bool, bool]) -> None:
    import torch

    # Newer releases' `torch.use_deterministic_algorithms` imports the compiler, for seconds, to set its configuration.
    # That is a setting by itself here.
    torch._C._set_deterministic_algorithms(value[0], warn_only=value[1])


def _get_anomaly_mode() -> Tuple[bool, bool]:
    import torch

    # There is no `check_nan` before torch 2.0
    return torch.is_anomaly_enabled(), getattr(torch, "is_anomaly_check_nan_enabled", lambda: True)()


def _set_anomaly_mode(value: Tuple[bool, bool]) -> None:
    import torch

    enabled, check_nan = value
    if check_nan:
        torch.autograd.set_detect_anomaly(enabled)
    else:
        torch.autograd.set_detect_anomaly(enabled, check_nan=False)


def _is_flushing_denormals() -> bool:
    # torch has no getter. The processor's mode holds for Python's numbers as well
    return sys.float_info.min / 2 == 0.0


def _get_matmul_precision() -> str:
    """Return what ``torch.set_float32_matmul_precision`` has set, also where torch does not tell it.

    torch computes with the values of the newer interface. It keeps the older one's beside them, and refuses to tell it
    where they contradict it. Which ones do shows what it must be (torch 2.13, ``Context::float32MatmulPrecision``).

    """
    import torch

    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        allows_tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    try:
        bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:
        allows_tf32 = not allows_tf32
    if not allows_tf32:
        return "highest"
    return "high" if torch.backends.mkldnn.matmul.fp32_precision == "bf16" else "medium"


def _get_cudnn_allow_tf32() -> bool:
    """Return what ``torch.backends.cudnn.allow_tf32`` was set to, also where torch does not tell it, as above.

    Where the newer interface has different values for convolutions and recurrent networks, it can't be known.

    """
    import torch

    cudnn = torch.backends.cudnn
    try:
        return bool(cudnn.allow_tf32)
    except RuntimeError:
        if cudnn.conv.fp32_precision != cudnn.rnn.fp32_precision:
            raise
        return bool(cudnn.conv.fp32_precision != "tf32")


def _check_sparse_tensors(enabled: bool) -> None:
    import torch

    check = torch.sparse.check_sparse_tensor_invariants
    check.enable() if enabled else check.disable()


def _autocast_dtype(device_type: str) -> _Setting:
    name = "gpu" if device_type == "cuda" else device_type

    def get() -> str:
        import torch

        if hasattr(torch, "get_autocast_dtype"):
            return _dtype_name(torch.get_autocast_dtype(device_type))
        return _dtype_name(getattr(torch, f"get_autocast_{name}_dtype")())  # before torch 2.4

    def set(value: str) -> None:
        import torch

        if hasattr(torch, "set_autocast_dtype"):
            torch.set_autocast_dtype(device_type, getattr(torch, value))
        else:
            getattr(torch, f"set_autocast_{name}_dtype")(getattr(torch, value))

    return _Setting(f"torch.get_autocast_dtype({device_type!r})", get, set)


# Python's own


def _get_logger_levels() -> Dict[str, int]:
    loggers = logging.root.manager.loggerDict
    levels = {name: getattr(loggers[name], "level", logging.NOTSET) for name in _get_logger_names(len(loggers))}
    return {name: level for name, level in levels.items() if level != logging.NOTSET or name in _LIGHTNING}


@lru_cache(maxsize=1)
def _get_logger_names(count: int) -> List[str]:
    """Return the names of Lightning's loggers; there are thousands of others, and loggers are never removed."""
    names = [name for name in list(logging.root.manager.loggerDict) if name.startswith(_LIGHTNING)]
    return [name for name in names if any(_is_within(name, module) for module in _LIGHTNING)]


def _is_within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


_Filter = Tuple[str, Any, str, str, Any, int]


def _encode_filters() -> List[_Filter]:
    """Return Python's warning filters, with categories by name: a child may not be able to import them."""
    filters: List[Any] = list(warnings.filters)
    return [
        (action, _encode_pattern(message), category.__module__, category.__qualname__, _encode_pattern(module), line)
        for action, message, category, module, line in filters
    ]


def _restore_filters(encoded: List[_Filter]) -> None:
    """Replace Python's warning filters; those for categories of modules that are not imported here are left out."""
    if _encode_filters() == encoded:
        return
    filters = []
    for action, message, module_of_category, name, module, line in encoded:
        category = _find_category(sys.modules.get(module_of_category), name)
        if category is not None:
            filters.append((action, _decode_pattern(message), category, _decode_pattern(module), line))
    if filters != list(warnings.filters):
        warnings.resetwarnings()  # this also makes Python forget which warnings it has shown
        warnings.filters.extend(filters)  # type: ignore[attr-defined]


def _find_category(module: Optional[ModuleType], name: str) -> Optional[type]:
    try:
        category = attrgetter(name)(module)
    except AttributeError:
        return None
    return category if isinstance(category, type) and issubclass(category, Warning) else None


def _encode_pattern(pattern: Any) -> Any:
    return pattern if pattern is None or isinstance(pattern, str) else (pattern.pattern, pattern.flags)


def _decode_pattern(pattern: Any) -> Any:
    # `re.compile` returns the same object for the same arguments
    return re.compile(*pattern) if isinstance(pattern, tuple) else pattern
