"""The revisions of the branch ``brooq``. A released one is never edited."""
