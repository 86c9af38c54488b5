"""Makes an OCI image from scratch with one static binary: image.py BINARY MACHINE VERSION FILE.

The file is a tar archive of an OCI image layout, which `podman load --input FILE`, `docker load --input FILE` and
`skopeo copy oci-archive:FILE ...` read. The same binary, certificates and version give the same bytes.
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

# The name that OCI gives each machine.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# The trust anchors of the machine that builds, for requests to an API behind TLS.
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
TIME = int(os.environ["SOURCE_DATE_EPOCH"])


def add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Adds a file of the user root."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), mode, TIME
    archive.addfile(entry, io.BytesIO(content))


def compress(plain: bytes) -> bytes:
    """Compresses, with one header in all versions of Python. `gzip.compress` has several."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, filename="", mode="wb", mtime=0) as file:
        file.write(plain)
    return packed.getvalue()


def layer(binary: str) -> bytes:
    """Returns the only layer: the binary, the trust anchors, and two folders that every user may write to."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        add(archive, "usr/bin/leasehold", Path(binary).read_bytes(), 0o755)
        add(archive, CERTIFICATES.removeprefix("/"), Path(CERTIFICATES).read_bytes())
        for folder in ("data", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o1777, TIME
            archive.addfile(entry)
    return buffer.getvalue()


def main(binary: str, machine: str, version: str, target: str) -> None:
    """Writes the image."""
    plain = layer(binary)
    packed = compress(plain)
    config = {
        "architecture": ARCHITECTURES[machine],
        "os": "linux",
        "config": {
            "User": "65534:65534",
            "Entrypoint": ["/usr/bin/leasehold"],
            "WorkingDir": "/data",
            "Env": ["PATH=/usr/bin", f"SSL_CERT_FILE={CERTIFICATES}"],
            "ExposedPorts": {"8080/tcp": {}},
            "Labels": {
                "org.opencontainers.image.title": "leasehold",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.source": "https://github.com/leasehold/leasehold",
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
    }
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(config).encode()),
        "layers": [blob("layer.v1.tar+gzip", packed)],
    }
    described = blob("manifest.v1+json", json.dumps(manifest).encode())
    # The first name is Docker's, the second one OCI's.
    described["annotations"] = {
        "io.containerd.image.name": f"docker.io/library/leasehold:{version}",
        "org.opencontainers.image.ref.name": version,
    }
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described]}
    # Docker before 25 reads no image layout: this list says the same in its own form.
    config_digest, layer_digest = (
        part["digest"].removeprefix("sha256:") for part in (manifest["config"], *manifest["layers"])
    )
    docker = [
        {
            "Config": f"blobs/sha256/{config_digest}",
            "RepoTags": [f"leasehold:{version}"],
            "Layers": [f"blobs/sha256/{layer_digest}"],
        }
    ]
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:
        add(archive, "manifest.json", json.dumps(docker).encode())
        add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        add(archive, "index.json", json.dumps(index).encode())
        for digest, content in sorted(blobs.items()):
            add(archive, f"blobs/sha256/{digest}", content)
    print(f"{Path(target).name}: {len(packed)} bytes packed, {len(plain)} unpacked")


if __name__ == "__main__":
    main(*sys.argv[1:])
