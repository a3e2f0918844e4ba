"""Released revisions are frozen: what somebody has run is never edited."""

from __future__ import annotations

import hashlib

from brooq_sa import migrations

DIGESTS = {
    # Not released yet: while that is so, a change is a matter of this one line. Once it is, never touch either.
    "brooq_0001_job.py": "3f24b3d13c66fc4005c03b4cc07ffcda28b78422b57ae13e7d4b655217e8676d",
}
"""SHA-256 of each revision's file."""


def test_revisions_are_as_they_were() -> None:
    """No released revision's file has changed, and each has its digest here (M1)."""
    folder = migrations.script_location() / "versions"
    found = {path.name: digest(path.read_bytes()) for path in sorted(folder.glob("brooq_*.py"))}
    assert found == DIGESTS, (
        "A revision differs from its digest. A released revision is never edited: databases that have run it would not"
        " get the change. Add a new revision, and a line here. Only for one that no release has had, change its line:"
        f" {found}"
    )


def digest(source: bytes) -> str:
    """Of the text, however its lines end."""
    return hashlib.sha256(source.replace(b"\r\n", b"\n")).hexdigest()
