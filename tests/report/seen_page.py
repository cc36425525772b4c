"""Pages as a browser would take them apart."""

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "path", "use", "rect", "image"}


class Seen(HTMLParser):
    """What a browser would make of a page: tags with attributes, and text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.text, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def assert_needs_nothing_outside(made):
    assert Seen(made).open == []
    assert "http:" not in made
    assert "https:" not in made
    assert not re.search(r"@import|url\((?!#)", made)
    for tag, attributes in Seen(made).tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base")
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png")), attributes
    policy = next(a["content"] for tag, a in Seen(made).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def assert_same_but_names(seen, plain):
    assert [tag for tag, _ in seen.tags] == [tag for tag, _ in plain.tags]
    assert [sorted(attributes) for _, attributes in seen.tags] == [sorted(attributes) for _, attributes in plain.tags]
