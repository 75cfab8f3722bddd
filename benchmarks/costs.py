"""Tables of what a step costs, and how much of the loss gap a way of scoring keeps."""

from typing import Any

from benchmarks.fast_modes import mean_kept
from benchmarks.result_files import origin, result
from maxup.lab.bench.profile import KINDS, OTHER

NETWORKS = {  # file of maxup bench in results/bench -> title
    "resnet50": "ResNet-50, 224 px, CutMix, compiled",
    "vit": "ViT-S/16 (takes any size), 224 px, CutMix, compiled",
    "bert": "BERT-base, 128 tokens, embedding dropout, compiled",
    "speednet": "speed-run network, 32 px, Cutout, eager",
    "wrn": "WRN-28-10, 32 px, Cutout, compiled",
    "resnet110": "ResNet-110, 32 px, Cutout, captured",
    "noise": "ResNet-110, 32 px, Gaussian noise, captured",
}
COPIES = {"wrn": 10, "noise": 25}  # otherwise 4
ADDED_TIME_ROWS = [
    *((name, variant) for name in ("resnet50", "vit") for variant in ("maxup_compiled_wide", "maxup_fast")),
    ("bert", "maxup_fast"),
    *((name, "maxup_compiled_wide") for name in ("speednet", "wrn", "resnet110", "noise")),
]
GRAPHS = ("maxup_captured", "maxup_fast_captured")  # variants that keep the memory of their passes


def cost() -> str:
    """One row per m: time and memory of a step relative to m = 1, on the CPU and on a GPU."""
    lines = ["| step | time, CPU | time, GPU | memory, CPU | memory, GPU |", "|---|---|---|---|---|"]
    times = [result(f"overhead-{device}") for device in ("cpu", "cuda")]
    peaks = [result(f"memory-{device}") for device in ("cpu", "cuda")]
    memory = [peak["peak_bytes"] for peak in peaks]
    for name, objective, m in (
        ("m = 1", "maxup", "1"),
        ("m = 2", "maxup", "2"),
        ("m = 4", "maxup", "4"),
        ("average of 4", "average", "4"),
    ):
        cells = [f"{t['step_ratio'][f'step, {name}']:.2f}" for t in times]
        cells += [f"{peak[objective][m] / peak['maxup']['1']:.2f}" for peak in memory]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    cells = [f"{t['step_ratio']['step, m = 10']:.2f}" for t in times]
    lines.append(f"| m = 10 | {' | '.join(cells)} | | |")
    cells = [f"{peak['maxup']['64'] / peak['maxup']['1']:.2f}" for peak in memory]
    lines.append(f"| m = 64 | | | {' | '.join(cells)} |")
    time, space = (" ".join(origin(one["environment"]) for one in files) for files in (times, peaks))
    return "\n".join(lines) + f"\n\nTime: {time} Memory: {space}"


def find(network: str, variant: str, m: int) -> dict[str, Any] | None:
    """The row of a variant in a result of `maxup bench`, if it was measured."""
    rows = result(f"bench/{network}")["variants"]
    return next((row for row in rows if (row["name"], row["m"]) == (variant, m) and row["seconds"]), None)


def selection() -> str:
    """One row per network: the time of a step relative to the standard step, for settings of the scoring passes."""
    wide = '`norm="running", chunk_size=4`'
    columns = {
        "maxup": "default", "maxup_no_dropout": "`dropout=False`", "maxup_wide": wide,
        "maxup_compiled_wide": f"{wide[:-1]}, compile=True`",
        "maxup_captured": f"{wide[:-1]}, compile=True, capture=True`", "maxup_fast": "`fast=True`",
        "maxup_fast_captured": "`fast=True, capture=True`",
    }  # fmt: skip
    headings = ["", "m", "batch", "standard step", *columns.values(), "memory", "memory with `capture=True`"]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for name, title in NETWORKS.items():
        found, m = result(f"bench/{name}"), COPIES.get(name, 4)
        cells = [title, str(m), str(found["batch_size"]), f"{1e3 * found['variants'][0]['median_seconds']:.1f} ms"]
        cells += [ratio(name, column, m) for column in columns]
        for graphs in (False, True):
            peaks = [row["memory_ratio"] for column in columns
                     if (column in GRAPHS) == graphs and (row := find(name, column, m))]  # fmt: skip
            cells.append(f"{max(peaks):.2f}" if peaks else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{origin(*(result(f'bench/{name}')['environment'] for name in NETWORKS))}"


def readme() -> str:
    """One row per network: the time of a step with m = 4 by default, and with a cheaper setting."""
    lines = ["| time of a step with m = 4 / m = 1 | default | cheaper | loss gap kept |", "|---|---|---|---|"]
    title = "ResNet-110, 32 px, Cutout, GPU"
    for name, baseline, loop, cheaper, setting, kept in (
        ("plain loop (the GPU waits for launches)", "plain loop, m = 1", "plain loop, m = 4",
         "plain loop, m = 4, capture", "`capture=True`", "1"),
        ("whole step captured", "captured, m = 1", "captured, m = 4", "captured, m = 4, running, wide",
         '`norm="running", chunk_size=4`', "not measured"),
    ):  # fmt: skip
        ratios = loop_ratio(loop, baseline), loop_ratio(cheaper, baseline)
        lines.append(f"| {title}, {name} | {ratios[0]:.2f} | {ratios[1]:.2f}, {setting} | {kept} |")
    for title, file, variant, setting, trained in (
        ("ResNet-50, 224 px, CutMix, compiled, GPU", "resnet50", "maxup_fast", "`fast=True`", False),
        (
            "ViT-S/16 (takes any size), 224 px, CutMix, compiled, GPU",
            "vit",
            "maxup_fast_captured",
            "`fast=True, capture=True`",
            False,
        ),
        (
            "BERT-base, embedding dropout, compiled, GPU (waits for launches)",
            "bert",
            "maxup_fast_captured",
            "`fast=True, capture=True`",
            False,
        ),
        ("EfficientNet-Lite0, 224 px, CutMix, CPU", "efficientnet", "maxup_fast", "`fast=True`", True),
        ("small Transformer, token dropout, CPU", "docstrings-token", "maxup_no_dropout", "`dropout=False`", True),
    ):
        row = find(file, variant, 4)
        assert row is not None
        kept = f"{row['gap_kept']:.2f}" if trained else "not measured"
        lines.append(f"| {title} | {ratio(file, 'maxup', 4)} | {row['time_ratio']:.2f}, {setting} | {kept} |")
    return "\n".join(lines)


def added_time() -> str:
    """Where the time goes that selection adds, in standard steps, for networks and settings."""
    lines = ["| | setting | time added | convolutions, matrix products, attention | other kernels | rest |"]
    lines += ["|---" * 6 + "|"]
    titles = {"maxup_compiled_wide": "`compile=True`", "maxup_fast": "`fast=True`"}
    for name, variant in ADDED_TIME_ROWS:
        base, row = result(f"bench/{name}")["variants"][0], find(name, variant, COPIES.get(name, 4))
        assert row is not None
        standard = base["median_seconds"]
        added = {
            kind: (row["profile"]["seconds"].get(kind, 0) - base["profile"]["seconds"].get(kind, 0)) / standard
            for kind in (*KINDS, OTHER)
        }
        total, other = row["time_ratio"] - 1, added.pop(OTHER)
        heavy = sum(added.values())
        cells = " | ".join(f"{round(value, 2) + 0:.2f}" for value in (total, heavy, other, total - heavy - other))
        lines.append(f"| {NETWORKS[name]} | {titles[variant]} | {cells} |")
    return "\n".join(lines)


def loops() -> str:
    """One row per training loop of ResNet-110: the time of a step."""
    found = result("captured-cuda")
    lines = ["| ResNet-110, Cutout, crops and flips | time of a step |", "|---|---|"]
    lines += [f"| {name} | {1e3 * seconds:.1f} ms |" for name, seconds in found["median_seconds"].items()]
    return "\n".join(lines) + f"\n\n{origin(found['environment'])}"


def loop_ratio(loop: str, baseline: str) -> float:
    """The time of a step of a training loop of ResNet-110, relative to another loop."""
    seconds = result("captured-cuda")["median_seconds"]
    return float(seconds[loop] / seconds[baseline])


def copy_shares(least: bool) -> str:
    """The least or the largest share of the standard step that drawing and applying one copy takes."""
    shares = [result(f"bench/{name}")["copy_ratio"] for name in (*NETWORKS, "crops")]
    return f"{100 * (min(shares) if least else max(shares)):.1f} %"


def copy_share(network: str) -> str:
    """The share of the standard step that drawing and applying one copy takes."""
    return f"{100 * result(f'bench/{network}')['copy_ratio']:.1f} %"


def ratio(network: str, variant: str, m: int) -> str:
    """The time of a step of a variant relative to the standard step, if it was measured."""
    row = find(network, variant, m)
    return "" if row is None else f"{row['time_ratio']:.2f}"


def gaps(title: str, files: dict[str, str]) -> str:
    """One row per way of scoring: time of a step and share of the loss gap, by name of the perturbation."""
    titles = {
        "maxup": "exact", "maxup_no_dropout": "`dropout=False`", "maxup_shortlist": "`shortlist=4`",
        "maxup_running": '`norm="running"`', "maxup_fast": "`fast=True`",
    }  # fmt: skip
    lines = [f"| {title} | m | time of a step / standard step | gap | gap kept |", "|---" * 5 + "|"]
    for name, file in files.items():
        for row in result(file)["variants"][1:]:
            if row["name"] != "maxup_shortlist" or row["m"] > 4:  # otherwise the shortlist has all copies
                cells = f"{row['m']} | {row['time_ratio']:.2f} | {row['gap']:.3f} | {row['gap_kept']:.2f}"
                lines.append(f"| {name}, {titles[row['name']]} | {cells} |")
    return "\n".join(lines) + f"\n\n{origin(*(result(file)['environment'] for file in files.values()))}"


def fidelity() -> str:
    """One row per perturbation and way of scoring: time of a step and share of the loss gap, on a trained network."""
    lines = ["| | time of a step / standard step | gap kept |", "|---|---|---|"]
    # fast=True scored at half the size when these files were written
    titles = {"maxup": "exact", "maxup_running": '`norm="running"`', "maxup_fast": "half the height and width"}
    files = {"CutMix": "bench/resnet20-cutmix", "Cutout 16": "bench/resnet20-cutout"}
    for name, file in files.items():
        for row in result(file)["variants"][1:]:
            lines.append(f"| {name}, {titles[row['name']]} | {row['time_ratio']:.2f} | {row['gap_kept']:.2f} |")
    return "\n".join(lines) + f"\n\n{origin(*(result(file)['environment'] for file in files.values()))}"


def fast_modes(name: str, title: str, m: str = "4") -> str:
    """One row per way of scoring: mean time of scoring relative to a standard step, and share of the loss gap."""
    found = result(f"fast_modes-{name}")
    rows = found["found"]
    lines = [f"| {title}, {found['pixels']} pixels, m = {m} | time of scoring | {' | '.join(rows)} |"]
    lines.append("|---" * (len(rows) + 2) + "|")
    for mode in dict.fromkeys(mode for row in rows.values() for mode in row["price"][m]):
        costs = [row["price"][m][mode] for row in rows.values() if mode in row["price"][m]]
        cells = (f"{mean_kept(row, m, mode):.2f}" if mode in row["price"][m] else "" for row in rows.values())
        lines.append(f"| {mode} | {sum(costs) / len(costs):.2f} | {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{origin(found['environment'])}"


def overhead(name: str, step: str) -> str:
    """The time of a step in plain PyTorch, relative to m = 1."""
    return f"{result(f'overhead-{name}')['step_ratio'][step]:.2f}"


def percent(device: str) -> str:
    return f"{100 * result(f'overhead-{device}')['select_overhead_of_one_forward']:.0f} %"
