"""MkDocs hook: pages may link to files outside of docs/, as they do on the repository host.

Pictures in results/ become part of the site. All other files become links to the repository.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

OUTSIDE = re.compile(r"\]\(\.\./([^)]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures to the site."""
    root = Path(config.docs_dir).parent
    for picture in sorted((root / "results").rglob("*.png")):
        uri = picture.relative_to(root).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(picture.resolve())))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite links that leave docs/."""

    def rewrite(match: re.Match[str]) -> str:
        target = match[1]
        return f"]({target if target.endswith('.png') else f'{config.repo_url}/blob/main/{target}'})"

    return OUTSIDE.sub(rewrite, markdown)
