"""Messages on the page of troubleshooting are those of the source."""

import ast
import re
from functools import cache

from tests.places import PACKAGES, ROOT, sources

PAGE = ROOT / "docs/troubleshooting.md"
SHORTEST = 8  # letters of a template's fixed parts; shorter ones say nothing
COVERED = 0.5  # share of a message's letters that the fixed parts of templates must account for

NAMES = r"'[^']*'|\S*[/:.]\S*"  # quoted ones, paths, and keys of a spec


def messages():
    """Return the messages on the page by their headings."""
    text = PAGE.read_text(encoding="utf-8")
    sections = re.findall(r"^### (.+)\n\n((?: {4}.+\n)+)\n(?=\w|`|\[)", text, re.MULTILINE)
    return {heading: " ".join(message.split()) for heading, message in sections}


def parts(node):
    """Return the fixed parts of a text or a formatted text, in order."""
    if isinstance(node, ast.Constant):
        return [node.value]
    return [
        value.value if isinstance(value, ast.Constant) else None
        for value in node.values  # None where a value is inserted
    ]


@cache
def templates():
    """Return a regular expression for each text in the packages, its fixed parts as groups."""
    expressions = set()
    for package in PACKAGES:
        for path in sources(package):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
                if is_text or isinstance(node, ast.JoinedStr):
                    fixed = [part for part in parts(node) if part is None or part.strip()]
                    if sum(len(part) for part in fixed if part) >= SHORTEST:
                        expressions.add(tuple(fixed))
    return expressions


def covered(message):
    """Return the share of a message that comes from texts in the source."""
    letters = set()
    for fixed in templates():
        if not all(part.strip() in message for part in fixed if part):
            continue
        pattern = "".join(f"({re.escape(part.strip())})" if part else ".*?" for part in fixed)
        match = re.search(pattern.replace(")(", r")\s*("), message)
        if match:
            for group in range(1, len(match.groups()) + 1):
                letters |= set(range(*match.span(group)))
    return len(letters) / len(re.sub(NAMES, "", message))


def test_page_has_thirty_messages_with_advice():
    headings = re.findall(r"^### (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [heading for heading in headings if heading not in messages()] == []
    assert len(headings) >= 30


def test_messages_exist_in_the_source():
    assert {
        heading: round(covered(message), 2)
        for heading, message in messages().items()
        if covered(message) < COVERED
    } == {}


def test_invented_messages_do_not():
    assert covered("the flux capacitor of softmax is empty; refill it with plutonium") < COVERED
