"""Lays out what `sam build` makes, out of binaries that are built already.

Arguments: the folder to fill, and the folder of the binaries. The stack is the same as that of `sam build`; the
binaries are those of a debug build.
"""

import json
import pathlib
import shutil
import subprocess
import sys

import stacks


def main(folder, binaries):
    template = stacks.read()
    build = pathlib.Path(folder)
    shutil.rmtree(build, ignore_errors=True)
    del template["Globals"]["Function"]["CodeUri"]
    application = template["Metadata"]["AWS::ServerlessRepo::Application"]
    application |= {name: str(stacks.ROOT / application[name]) for name in ("LicenseUrl", "ReadmeUrl")}
    for resource in template["Resources"].values():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::Serverless::Function":
            binary = resource.pop("Metadata")["BuildProperties"]["Binary"]
            properties["CodeUri"] = binary
            code = build / binary
            if not code.exists():
                code.mkdir(parents=True)
                subprocess.run(["strip", "-o", code / "bootstrap", pathlib.Path(binaries) / binary], check=True)
        if "DefinitionUri" in properties:
            properties["DefinitionUri"] = str(stacks.ROOT / properties["DefinitionUri"])
    (build / "template.yaml").write_text(json.dumps(template, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
