"""Hooks of mkdocs.yml: pages that stand beside what they describe, and links to files that are no pages."""

import os
import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[2]
# Pages of the site whose text is kept elsewhere in the repository.
ELSEWHERE = {
    "changelog.md": "CHANGELOG.md",
    "cdk.md": "cdk/README.md",
    "command.md": "cli/README.md",
    "python.md": "clients/python/README.md",
    "rust.md": "shared/leasehold-client/README.md",
    "security.md": "SECURITY.md",
    "terraform.md": "terraform/README.md",
    "typescript.md": "clients/typescript/README.md",
}
PAGES = {source: page for page, source in ELSEWHERE.items()}
LINK = re.compile(r"\]\(([^)\s#]*)(#[^)\s]*)?\)")


def on_files(files, config):
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "mermaid.min.js", content=pathlib.Path(os.environ["MERMAID"]).read_text()))
    return files


def on_page_markdown(markdown, page, config, **_):
    path = page.file.src_uri
    folder = pathlib.PurePosixPath(ELSEWHERE.get(path, f"docs/{path}")).parent
    depth = path.count("/")

    def link(match):
        target, anchor = match[1], match[2] or ""
        repository = f"{config.repo_url}/blob/main/"
        if target.startswith(repository):
            file = target.removeprefix(repository)
        elif not target or ":" in target:
            return match[0]
        else:
            file = os.path.normpath(folder / target)
        if file in PAGES:
            target = "../" * depth + PAGES[file]
        elif file.startswith("docs/"):
            target = "../" * depth + file.removeprefix("docs/")
        elif (ROOT / file).exists():
            target = repository + file
        return f"]({target}{anchor})"

    return LINK.sub(link, markdown)
