"""The page is one well-formed file that loads nothing, has every number of the paper, and fits in a browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from maxup.cli.main import main
from maxup.lab.results.files import file_name
from maxup.lab.results.paper import load_paper
from tests.lab.report.runs import write_run
from tests.waiting import PATIENCE

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Reader(HTMLParser):
    """Checks nesting; gathers text, ids, links and addresses."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.ids, self.tags, self.addresses = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open += [] if tag in VOID else [tag]
        self.ids += [value for key, value in attrs if key == "id"]
        self.addresses += [value for key, value in attrs if key in ("href", "src", "srcset", "action", "data")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text.append(data.replace("\xa0", " "))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A page with results, some with markup in names and hardware."""
    root = tmp_path_factory.mktemp("page")
    curve = "".join(
        json.dumps({"step": e, "epoch": e, "train_loss": 1 / e, "test_accuracy": 1 - 0.5 / e}) + "\n"
        for e in range(1, 9)
    )
    for seed in range(3):
        for name, gain in (("cifar10/resnet110-cutout", 0.0), ("cifar10/resnet110-cutout-maxup", 0.005)):
            recipe = {"objective": {"name": "maxup"}} if gain else {}
            write_run(root / "runs", name, seed, 0.94 + gain + seed / 1000, curve=curve, recipe=recipe)
            for budget in (0.36, 0.3):
                stem = file_name(seed, budget=budget)
                write_run(root / "runs", name, seed, 0.9 + gain, curve=curve, recipe=recipe, stem=stem)
    write_run(root / "runs", "<script>alert(1)<", 0, 0.5)
    write_run(root / "results", "<script>alert(1)<", 0, 0.5)
    (root / "results" / "seed-0.json").write_text('"<b>"')
    folders = ["--results", str(root / "results"), "--runs", str(root / "runs"), "--out", str(root)]
    assert main(["report", "--all", *folders]) == 0
    return root / "report.html"


@pytest.fixture(scope="module")
def read(made):
    return Reader(made.read_text())


def test_it_is_well_formed_and_loads_nothing(read, made):
    assert read.tags.count("h1") == 1
    assert not {"script", "link", "iframe", "object"} & set(read.tags)
    assert len(read.ids) == len(set(read.ids))
    for address in read.addresses:
        assert address.startswith("data:image/") or address.removeprefix("#") in read.ids
    assert not re.search(r"url\(|@import|https?:", made.read_text())


def test_every_number_of_the_paper_is_there(read):
    text = " ".join(read.text)
    for table in load_paper().values():
        for row in table.rows.values():
            for value in row.values.values():
                number = f"{value.mean:.{table.digits}f}"
                assert (number if value.std is None else f"{number} ± {value.std:.{table.digits}f}") in text
            for size in (row.params, row.flops):
                if size:
                    assert re.search(
                        rf"\b{size.mean / (1e9 if size.mean >= 1e9 else 1e6):.2f}".removesuffix(".00"), text
                    )


def test_our_results_and_their_hardware_are_there(read):
    text = "".join(read.text)
    assert "94.60 ± 0.10 (n = 3)" in text
    assert "+0.50 [+0.27, +0.73]" in text  # 0.1 * sqrt(2 / 3) * 2.776, the quantile of 4 degrees of freedom
    assert "60 of 200 epochs" in text
    assert "a <b>CPU</b>" in text  # as text, not as markup
    assert "0000000 (dirty tree)" in text
    assert "is skipped" in text
    assert "<script>alert(1)" in text


def test_one_table_alone(tmp_path, capsys):
    assert (
        main(["report", "table-wt2", "--results", str(tmp_path), "--runs", str(tmp_path), "--out", str(tmp_path)]) == 0
    )
    text = Reader((tmp_path / "report.html").read_text()).text
    assert "Table 7: wt2" in text
    assert "Table 3: cifar10" not in text
    assert "39.61" in capsys.readouterr().out


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROBE = """<!DOCTYPE html><body style="margin:0">
<iframe src="report.html" style="border:0;width:{width}px;height:800px">
</iframe><pre id="out"></pre><script>onload = () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  const shown = [...page.querySelectorAll("td, figure, h2, p, li")].filter(e => e.getClientRects().length);
  const over = shown.filter(e => e.getBoundingClientRect().right > root.clientWidth + 1).map(e => e.textContent);
  const images = [...page.images];
  document.querySelector("#out").textContent = JSON.stringify({{width: root.scrollWidth, over,
    images: images.length, broken: images.filter(i => !i.naturalWidth).length}});
}};</script>"""


def browse(folder, *options):
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_all_of_it_without_scrolling_sideways(made, tmp_path, width):
    probe = made.with_name(f"probe-{width}.html")
    probe.write_text(PROBE.format(width=width))
    dumped = browse(tmp_path, "--allow-file-access-from-files", "--dump-dom", probe.as_uri())
    found = json.loads(re.search(r'<pre id="out">(.*?)</pre>', dumped)[1])
    assert found["over"] == []
    assert found["width"] <= width
    assert found["images"] == 7
    assert found["broken"] == 0


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
def test_it_prints_and_takes_a_picture(made, tmp_path):
    browse(tmp_path, "--window-size=390,2000", f"--screenshot={tmp_path / 'phone.png'}", made.as_uri())
    browse(tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}", made.as_uri())
    assert (tmp_path / "phone.png").stat().st_size > 20_000
    pages = len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "page.pdf").read_bytes()))
    assert 3 <= pages <= 14


@pytest.mark.parametrize(
    ("seconds", "shared", "summary"),
    [
        (60.0, True, "1 finished run. "),
        (1.57, False, "1 finished run, 1.6 seconds of training"),
        (150.0, False, ", 2.5 minutes of training"),
        (7.2e6, False, ", 2,000.0 hours of training"),
    ],
)
def test_times_are_summed_if_all_are_known(tmp_path, seconds, shared, summary):
    write_run(tmp_path / "results", "cifar10/resnet110-cutout", 0, 0.9, shared=shared, seconds=seconds)
    folders = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "results")]
    assert main(["report", "table-cifar10", *folders, "--out", str(tmp_path / "out")]) == 0
    text = " ".join(Reader((tmp_path / "out" / "report.html").read_text()).text)
    assert summary in text
