"""Bodies of application/x-tar for schemathesis, which makes none itself: tars with any files, and bytes that are no tar."""

import io
import tarfile

import schemathesis
from hypothesis import strategies

PATHS = [
    "main.tf",
    "prod/main.tf.json",
    "../main.tf",
    "larder-bundle.json",
    "larder-bundle.sig",
    "registry.terraform.io/acme/null/index.json",
    "registry.terraform.io/acme/null/terraform-provider-null_1.2.0_linux_amd64.zip",
]


def tar(files):
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return body.getvalue()


characters = strategies.characters(exclude_categories=["Cs"], exclude_characters="\0")
paths = strategies.sampled_from(PATHS) | strategies.text(characters, min_size=1, max_size=40)
tars = strategies.dictionaries(paths, strategies.binary(max_size=512), max_size=4).map(tar)
schemathesis.openapi.media_type("application/x-tar", tars | strategies.binary(max_size=2048))
