"""Joining the branch ``brooq`` with somebody's own migrations: what ``brooq-sa alembic`` does, and Alembic's plugin.

Empty on purpose: Alembic imports `plugin` whenever it is imported itself, in any process.
"""
