"""Validates answers against the schemas that docs/openapi.json has for them.

Usage: answers.py OPENAPI ANSWERS. Each line of ANSWERS has the name of an answer, its schema and its document.
"""

import json
import sys
from pathlib import Path

from jsonschema_rs import Draft202012Validator


def main() -> None:
    """Prints how many answers are valid. Exits with 1 where one is not."""
    components = json.loads(Path(sys.argv[1]).read_text())["components"]
    answers = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    validators: dict[str, Draft202012Validator] = {}
    wrong = 0
    for entry in answers:
        schema = entry["schema"]
        # The references of a schema begin at the root of the document.
        validator = validators.setdefault(
            json.dumps(schema), Draft202012Validator({**schema, "components": components})
        )
        for error in validator.iter_errors(entry["answer"]):
            wrong += 1
            print(f"{entry['name']}: {error.instance_path}: {error.message}", file=sys.stderr)
    print(f"{len(answers)} answers of the conformance suite, {wrong} violations of their schemas")
    sys.exit(1 if wrong or not answers else 0)


if __name__ == "__main__":
    main()
