"""Hooks of MkDocs: add the generated pages, and adapt the links of all pages."""

import os
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
os.environ["COLUMNS"] = "100"  # the width of usages

from pages import generated_pages, with_site_links


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; README.md of a folder stays its index."""
    readme = files.get_file_from_path("README.md")
    if readme is not None:
        files.remove(readme)
    for name, text in generated_pages().items():
        head = "---\nhide: [navigation]\n---\n\n" if name == "index.md" else ""
        files.append(File.generated(config, name, content=head + text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the links of a page right on the site."""
    return with_site_links(markdown, page.file.src_uri)
