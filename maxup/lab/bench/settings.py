"""The variants of a step, by name. To measure another setting of MaxUp, add a line to `MAXUP`.

This module imports nothing heavy, because `maxup bench --help` lists the names.
"""

from typing import Any

MAXUP: dict[str, dict[str, Any]] = {  # keyword arguments of MaxUp
    "maxup": {},  # exact, the reference of fidelity
    "maxup_running": {"norm": "running"},
    "maxup_no_dropout": {"norm": "running", "dropout": False},
    "maxup_wide": {"norm": "running", "chunk_size": 4},  # 4 copies per pass
    "maxup_compiled": {"norm": "running", "compile": True},
    "maxup_compiled_wide": {"norm": "running", "chunk_size": 4, "compile": True},
    "maxup_captured": {"norm": "running", "chunk_size": 4, "compile": True, "capture": True},
    "maxup_fast": {"fast": True},
    "maxup_fast_captured": {"fast": True, "capture": True},
    "maxup_retain": {"strategy": "retain"},
    "maxup_auto": {"strategy": "auto"},
    "maxup_shortlist": {"shortlist": 4},  # 4 copies are scored
    "maxup_shortlist_wide": {"shortlist": 4, "norm": "running", "chunk_size": 4},
}
BY_M = (*MAXUP, "average", "keep_all_graphs")  # measured for every m
NAMES = (*BY_M, "pgd7", "sam")
DEFAULT = ("maxup", "average", "keep_all_graphs", "pgd7", "sam")
SIZES: dict[str, dict[str, int]] = {  # defaults by type of device
    "cpu": {"batch_size": 16, "rounds": 5, "train_steps": 20, "calls": 1, "fidelity_batches": 4},
    "cuda": {"batch_size": 256, "rounds": 10, "train_steps": 200, "calls": 5, "fidelity_batches": 8},
}
