"""Runs the curl session of README.md, word for word, and compares each answer with the one printed below it.

What differs from run to run is compared by its kind only: version numbers, fencing tokens, and texts that the README cuts
short. Usage: readme_session.py BASE_URL. The README's own address is replaced by this one where it is another.
"""

import json
import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).parents[2] / "README.md"
README_URL = "http://127.0.0.1:8080"
SECTION = re.compile(r"^## Use it$(.*?)^## ", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(sh|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARYING = {"recordVersionNumber": str, "fencingToken": int}
TIMEOUT_SECONDS = 120


def documents(text):
    """The JSON documents that were printed one after the other."""
    decoder, position = json.JSONDecoder(), 0
    while text[position:].strip():
        position += len(text[position:]) - len(text[position:].lstrip())
        document, position = decoder.raw_decode(text, position)
        yield document


def is_like(actual, printed):
    """Whether an answer is the one that the README prints."""
    if isinstance(printed, dict):
        return (
            isinstance(actual, dict)
            and actual.keys() == printed.keys()
            and all(
                isinstance(actual[name], VARYING[name]) if name in VARYING else is_like(actual[name], printed[name])
                for name in printed
            )
        )
    if isinstance(printed, str) and printed.endswith("…"):
        return isinstance(actual, str) and actual.startswith(printed[:-1])
    return actual == printed


def main(base_url):
    blocks = BLOCK.findall(SECTION.search(README.read_text()).group(1))
    assert [kind for kind, _ in blocks] == ["sh", "json"] * (len(blocks) // 2), "a command and its answer, by turns"
    for (_, commands), (_, printed) in zip(blocks[::2], blocks[1::2]):
        commands = commands.replace(README_URL, base_url)
        run = subprocess.run(["bash", "-euc", commands], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        if run.returncode != 0:
            sys.exit(f"{commands}failed\n{run.stdout}{run.stderr}")
        answer, printed = list(documents(run.stdout))[-1], json.loads(printed)
        if not is_like(answer, printed):
            sys.exit(f"{commands}was answered\n{json.dumps(answer)}\nand not, as the README says,\n{json.dumps(printed)}")
    print(f"{len(blocks) // 2} steps of the README's session were answered as it says")


main(sys.argv[1])
