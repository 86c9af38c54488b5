"""Makes what the construct includes, out of template.yaml.

- template.json: the template as SAM's translator leaves it.
- src/parameters.ts: the template's parameters as properties.
"""

import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "scripts/lib"))
import stacks  # noqa: E402

TYPES = {"String": "string", "Number": "number", "CommaDelimitedList": "string[]"}


def properties(parameters):
    enums, members = [], []
    for name, parameter in parameters.items():
        values = parameter.get("AllowedValues", [])
        kind = TYPES[parameter["Type"]]
        if values == ["true", "false"]:
            kind = "boolean"
        elif values and kind == "string":
            kind = f"Leasehold{name}"
            lines = [f"  {constant(value)} = '{value}'," for value in values]
            enums.append("\n".join([f"/** {parameter['Description']}. */", f"export enum {kind} {{", *lines, "}", ""]))
        comment = f"  /**\n   * {parameter['Description']}.\n   * @default {parameter['Default'] or 'none'}\n   */"
        members.append(f"{comment}\n  readonly {name[0].lower()}{name[1:]}?: {kind};")
    interface = ["/** The parameters of the template. */", "export interface LeaseholdParameters {", *members, "}", ""]
    return "\n".join([*enums, *interface])


def constant(value):
    """`RETAIN_EXCEPT_ON_CREATE` for `RetainExceptOnCreate`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", value).upper()


template = stacks.translate(stacks.read())
for output in template["Outputs"].values():
    # Stacks of the CDK export what they like.
    output.pop("Export", None)
(HERE / "template.json").write_text(json.dumps(template))
(HERE / "src/parameters.ts").write_text(properties(template["Parameters"]))
