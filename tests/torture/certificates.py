"""Mutations of certificate files, shown by `maxup certify FILE` and resumed by `maxup certify RUN`."""

import json
import shutil
from pathlib import Path
from random import Random

from tests.torture.mutations import ODD, mutate_bytes, mutate_file, mutate_json
from tests.torture.outcomes import classify, command
from tests.torture.subject import CERTIFY, make


class Certificates:
    """The table that is shown must be that of the file as it was written, or of its first rows; or be refused."""

    def __init__(self, place: Path) -> None:
        self.place = place
        make(place, ["certify", "run", *CERTIFY])
        (self.file,) = (place / "run").glob("*.tsv")
        self.content = self.file.read_bytes()
        self.record = (place / "run" / "run.json").read_bytes()
        self.resume = ["certify", "run", *CERTIFY]
        lines = self.content.decode().splitlines(keepends=True)
        self.tables = set()
        for rows in range(1, len(lines) - 1):
            self.file.write_text("".join(lines[: 2 + rows]))
            self.tables.add(command(place, "certify", self.file).out)

    def case(self, number: int, chance: Random) -> tuple[str, str]:
        shutil.rmtree(self.file) if self.file.is_dir() else self.file.unlink(missing_ok=True)
        (self.place / "run" / "run.json").write_bytes(self.record)
        self.file.write_bytes(self.content)
        elsewhere = self.place / "elsewhere"
        elsewhere.write_bytes(self.content)
        kind = chance.choice(["rows"] * 8 + ["header"] * 3 + ["bytes"] * 4 + ["file"])
        if kind == "file":
            kind = mutate_file(self.file, chance, elsewhere)
        elif kind == "bytes":
            self.file.write_bytes(mutate_bytes(self.content, chance))
        else:
            lines = self.content.decode().splitlines()
            (mutate_rows if kind == "rows" else mutate_header)(lines, chance)
            self.file.write_text("\n".join(lines) + "\n", errors="surrogatepass")
        edited = kind in ("rows", "header", "bytes", "json")
        if chance.random() < 0.75:
            ended = command(self.place, "certify", self.file)
            same = ended.out in self.tables
        else:
            ended = command(self.place, *self.resume)
            same = self._recorded_as_before()
        same = same and elsewhere.read_bytes() == self.content
        first = _first_difference(self.file, self.content.decode()) if edited else ""
        return classify(ended, same=same), f"{kind}: {first}: {ended.out[-500:]}{ended.err[-1500:]}"

    def _recorded_as_before(self) -> bool:
        before, now = json.loads(self.record), json.loads((self.place / "run" / "run.json").read_text())
        return bool(before["last"] == now["last"])


def mutate_rows(lines: list[str], chance: Random) -> None:
    """Edit, swap, repeat, move or remove lines of certificates, the last line apart."""
    at, other = (chance.randrange(2, len(lines)) for _ in "12")
    kind = chance.randrange(6)
    if kind < 3:  # a cell: an odd one, another row's, or a number near it
        cells, others = lines[at].split("\t"), lines[other].split("\t")
        cell = chance.randrange(len(cells))
        try:
            near = str(type(json.loads(cells[cell]))(json.loads(cells[cell]) + chance.choice([-1, 1, 0.25, 1.5])))
        except (ValueError, TypeError):
            near = "0"
        cells[cell] = [str(chance.choice(ODD)), others[cell], near][kind]
        lines[at] = "\t".join(cells)
    elif kind == 3:
        lines.insert(other, lines[at])
    elif kind == 4:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        del lines[at]


def mutate_header(lines: list[str], chance: Random) -> None:
    """Edit the first line's JSON, or the names of the columns."""
    if chance.random() < 0.8:
        lines[0] = f"# {json.dumps(mutate_json(json.loads(lines[0].removeprefix('# ')), chance))}"
    else:
        columns = lines[1].split("\t")
        chance.shuffle(columns)
        lines[1] = "\t".join(columns)


def _first_difference(file: Path, content: str) -> str:
    now = file.read_text(errors="replace").splitlines()
    for number, (old, new) in enumerate(zip(content.splitlines(), now, strict=False), 1):
        if old != new:
            at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
            return f"line {number}: ...{old[at : at + 60]!r} -> ...{new[at : at + 60]!r}"
    return "rows cut or added at the end"
