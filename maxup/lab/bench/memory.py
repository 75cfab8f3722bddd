"""Peak memory of a step, exact on CUDA and on the CPU."""

from collections.abc import Callable

import torch

from maxup.lab.bench.profile import quiet_profiler


def peak_bytes(step: Callable[[], object], device: torch.device | str) -> int:
    """Return the peak number of bytes allocated during step(), relative to before the call.

    CUDA: from the statistics of PyTorch's allocator. CPU: from the profiler, which records every allocation and
    release of PyTorch's allocator. Scratch memory that a library such as oneDNN allocates by itself is not counted.
    """
    if torch.device(device).type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with quiet_profiler(memory=True) as record:
        step()
    assert record.profiler is not None
    assert record.profiler.kineto_results is not None
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
