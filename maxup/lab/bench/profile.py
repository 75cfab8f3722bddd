"""Where the time of a step goes, by kind of kernel."""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

KINDS = {  # the first pattern that a name matches
    "fused attention": r"attention|flash|fmha",
    "convolutions and matrix products": r"conv|[fdw](prop|grad)|gemm|cutlass|nvjet|::(add|b|badd)?mm|linear|maxup::",
}
OTHER = "other kernels"
IDLE = "idle"
MOST = 12  # kernels in a result


def quiet_profiler(*, on_gpu: bool = False, memory: bool = False) -> profile:
    """Return a profiler of operations, and of kernels or memory, that writes nothing to stderr."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    return profile(activities=activities, profile_memory=memory, acc_events=True)


def profile_step(step: Callable[[], object], device: torch.device | str) -> dict[str, Any]:
    """Return the seconds of a step by kind of kernel, and its longest kernels.

    CUDA: kernels, from the profiler. CPU: operations, by the time that they take themselves.
    """
    on_gpu = torch.device(device).type == "cuda"
    with quiet_profiler(on_gpu=on_gpu) as record:
        step()
        if on_gpu:
            torch.cuda.synchronize(device)
    kernels = [
        {
            "name": event.key,
            "seconds": (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6,
            "count": event.count,
        }
        for event in record.key_averages()
        if (event.device_type == DeviceType.CUDA) == on_gpu and not event.is_user_annotation
    ]
    kernels = sorted((k for k in kernels if k["seconds"]), key=lambda kernel: -kernel["seconds"])
    kinds = dict.fromkeys([*KINDS, OTHER], 0.0)
    for kernel in kernels:
        kinds[kind(kernel["name"])] += kernel["seconds"]
    longest = [kernel | {"name": kernel["name"][:120]} for kernel in kernels[:MOST]]
    return {"seconds": {name: value for name, value in kinds.items() if value}, "kernels": longest}


def kind(kernel: str) -> str:
    """Return the kind of a kernel, by its name.

    Example:
        >>> kind("sm90_xmma_fprop_implicit_gemm_bf16f32"), kind("triton_poi_fused_add_relu_3")
        ('convolutions and matrix products', 'other kernels')
    """
    return next((name for name, pattern in KINDS.items() if re.search(pattern, kernel, re.IGNORECASE)), OTHER)


def shares(profiled: Mapping[str, Any], step_seconds: float) -> dict[str, float]:
    """Return the share of each kind in the seconds of a step. The rest is idle: the device waits for launches.

    Example:
        >>> shares({"seconds": {"fused attention": 0.25, "other kernels": 0.5}}, 1.0)
        {'fused attention': 0.25, 'other kernels': 0.5, 'idle': 0.25}
    """
    busy = sum(profiled["seconds"].values())
    whole = max(step_seconds, busy)  # a profiled step is slower
    return {name: seconds / whole for name, seconds in profiled["seconds"].items()} | {IDLE: 1 - busy / whole}
