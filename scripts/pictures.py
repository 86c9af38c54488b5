#!/usr/bin/env python3
"""Draws the pictures of docs/images: the life of a lock, two hosts, the stack, a transaction.

Run it after a change: scripts/pictures.py. The files have their colours for light and dark pages.
"""

from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"

STYLE = """
text { font: 14px system-ui, "Segoe UI", "Liberation Sans", sans-serif; fill: #1d2528; }
.small { font-size: 12px; fill: #56636a; }
.bold { font-weight: 650; }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12px; }
.middle { text-anchor: middle; }
.end { text-anchor: end; }
.ground { fill: #ffffff; }
.box { fill: #eef3f2; stroke: #b9c9c6; }
.good { fill: #d9efec; stroke: #0b6b66; }
.bad { fill: #fbe3e0; stroke: #b0221c; }
.warn { fill: #fdf0d9; stroke: #b07a1a; }
.plain { fill: none; stroke: #b9c9c6; stroke-dasharray: 5 4; }
.line { fill: none; stroke: #5c6c72; stroke-width: 1.6; }
.faint { fill: none; stroke: #cdd6d5; }
.head { fill: #5c6c72; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6ecee; }
  .small { fill: #9fb0b6; }
  .ground { fill: #12181b; }
  .box { fill: #1e282c; stroke: #43545a; }
  .good { fill: #123b38; stroke: #4fc7bd; }
  .bad { fill: #45201f; stroke: #ff8b80; }
  .warn { fill: #3b2d12; stroke: #f0b34c; }
  .plain { stroke: #43545a; }
  .line { stroke: #9fb0b6; }
  .faint { stroke: #2b363a; }
  .head { fill: #9fb0b6; }
}
"""


class Picture:
    """An SVG file that grows by one shape at a time."""

    def __init__(self, name, width, height, title):
        self.name = name
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-labelledby="title"><title id="title">{escape(title)}</title><style>{STYLE}</style>'
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
            'orient="auto-start-reverse"><path d="M0 1 L10 5 L0 9 z" class="head"/></marker></defs>'
            f'<rect class="ground" width="{width}" height="{height}" rx="12"/>'
        ]

    def text(self, x, y, words, kind=""):
        self.parts.append(f'<text x="{x}" y="{y}" class="{kind}">{escape(words)}</text>')

    def box(self, x, y, width, height, lines, kind="box"):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="9" class="{kind}"/>')
        first = y + height / 2 + 5 - 9 * (len(lines) - 1)
        for index, line in enumerate(lines):
            self.text(x + width / 2, first + 18 * index, line, "middle bold" if index == 0 else "middle small")

    def frame(self, x, y, width, height, label):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="12" class="plain"/>')
        self.text(x + 14, y + 22, label, "small")

    def bar(self, x, y, width, height, kind):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" class="{kind}"/>')

    def arrow(self, path, words="", at=(0, 0), kind="middle small"):
        self.parts.append(f'<path d="{path}" class="line" marker-end="url(#head)"/>')
        if words:
            x, y = at
            self.text(x, y, words, kind)

    def line(self, x1, y1, x2, y2, kind="faint"):
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kind}"/>')

    def document(self):
        return "\n".join([*self.parts, "</svg>", ""])

    def save(self):
        (IMAGES / f"{self.name}.svg").write_text(self.document())


def life_of_a_lock():
    picture = Picture("life-of-a-lock", 860, 330, "The life of a lock: free, held, stale, and back")
    picture.box(40, 130, 150, 70, ["free", "no row, or released"])
    picture.box(350, 130, 160, 70, ["held", "version changes"], "good")
    picture.box(670, 130, 150, 70, ["stale", "to one observer"], "bad")
    picture.arrow("M190 150 H344", "acquire: a new token", (267, 140))
    picture.arrow("M350 182 H196", "release, or break", (271, 202))
    picture.arrow("M400 130 C390 60 470 60 460 124", "heartbeat: a new version", (430, 62))
    picture.arrow("M510 150 H664", "one version for a lease", (588, 140))
    picture.arrow("M670 182 H516", "heartbeat after all", (592, 202))
    picture.arrow(
        "M745 200 C745 290 430 300 430 206",
        "take over, on condition that the version is still the one seen",
        (590, 296),
    )
    picture.arrow("M690 200 C640 262 180 270 120 206", "break, on the same condition", (300, 272))
    picture.save()


def two_hosts():
    picture = Picture("two-hosts", 860, 360, "Two hosts on a time line: host 1 dies, host 2 takes over")
    left, right = 120, 830
    for y, name in [(90, "host 1"), (185, "the row"), (280, "host 2")]:
        picture.text(20, y + 5, name, "bold")
        picture.line(left, y, right, y)
    second = (right - left) / 34

    def at(seconds):
        return left + seconds * second

    picture.bar(at(0), 78, at(7) - at(0), 24, "good")
    picture.text(at(3.5), 95, "works", "middle small")
    picture.bar(at(7), 78, 8, 24, "bad")
    picture.text(at(7) + 14, 95, "dies", "small")
    for beat, label in [(0, "v1"), (5, "v2")]:
        picture.arrow(f"M{at(beat)} 102 V165")
        picture.bar(at(beat), 170, (5 if beat == 0 else 23.4) * second, 30, "box")
        picture.text(at(beat) + 10, 190, label, "mono")
    picture.text(at(0), 66, "acquire", "middle small")
    picture.text(at(5), 66, "heartbeat", "middle small")
    picture.text(at(16.5), 190, "nobody changes the row", "middle small")
    picture.arrow(f"M{at(8)} 268 V206", "first sees v2", (at(8), 312))
    picture.bar(at(8), 270, 20 * second, 20, "warn")
    picture.text(at(18), 285, "watches v2 for the lease of 20 s, by its own clock", "middle small")
    picture.arrow(f"M{at(28.4)} 268 V206", "takes over from v2", (at(28.4), 312))
    picture.bar(at(28.4), 170, 5.6 * second, 30, "good")
    picture.text(at(28.4) + 10, 190, "v3, new token", "mono")
    picture.text(left, 344, "No clock of one machine is compared with that of another.", "small")
    picture.save()


def stack():
    picture = Picture("stack", 860, 360, "The deployed stack")
    picture.box(20, 60, 150, 56, ["any client", "HTTP, signed or JWT"])
    picture.box(20, 152, 150, 56, ["Step Functions", "direct invocation"])
    picture.box(20, 244, 150, 56, ["EventBridge", "schedule, ended runs"])
    picture.frame(215, 20, 625, 320, "one stack, nothing to run")
    picture.box(235, 60, 150, 56, ["HTTP API", "API Gateway"])
    picture.box(440, 60, 170, 56, ["one function each", "acquire, heartbeat, …"], "good")
    picture.box(440, 152, 170, 56, ["invoke", "the same handlers"], "good")
    picture.box(440, 244, 170, 56, ["cleanup, sweep", "what callers left"], "good")
    picture.box(665, 80, 155, 70, ["lock table", "one row a lock"], "warn")
    picture.box(665, 210, 155, 70, ["transactions", "and your own tables"], "warn")
    picture.arrow("M170 88 H229")
    picture.arrow("M385 88 H434")
    picture.arrow("M170 180 H434")
    picture.arrow("M170 272 H434")
    picture.arrow("M610 88 C635 88 635 106 659 106")
    picture.arrow("M610 176 C640 176 635 126 659 126")
    picture.arrow("M610 188 C640 188 635 236 659 236")
    picture.arrow("M610 272 C635 272 635 252 659 252")
    picture.text(742, 178, "one conditional write", "middle small")
    picture.text(742, 194, "for each request", "middle small")
    picture.save()


def transaction():
    picture = Picture("transaction", 860, 330, "A transaction and its two items, step by step")
    columns = [(130, "before"), (305, "lock and apply"), (480, "decide"), (655, "complete")]
    for x, label in columns:
        picture.text(x + 75, 40, label, "middle bold")
    for y, name in [(70, "Moe"), (150, "Larry"), (230, "transaction")]:
        picture.text(20, y + 32, name, "bold")
    states = [
        [("100", "box"), ("70 · was 100", "warn"), ("70 · was 100", "warn"), ("70", "good")],
        [("100", "box"), ("130 · was 100", "warn"), ("130 · was 100", "warn"), ("130", "good")],
        [("pending", "box"), ("pending", "box"), ("committed", "good"), ("finished", "good")],
    ]
    for row, cells in enumerate(states):
        for (x, _), (words, kind) in zip(columns, cells, strict=True):
            picture.box(x, 70 + 80 * row, 150, 54, [words], kind)
        for x, _ in columns[:-1]:
            picture.arrow(f"M{x + 150} {97 + 80 * row} H{x + 171}")
    picture.text(
        130,
        310,
        "Until the decision readers see 100 and 100; after it 70 and 130. It is one write, so nobody sees a half.",
        "small",
    )
    picture.save()


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    for draw in [life_of_a_lock, two_hosts, stack, transaction]:
        draw()
