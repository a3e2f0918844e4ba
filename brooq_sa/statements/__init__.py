"""The queue's SQL as SQLAlchemy Core: every function builds an Executable and runs nothing.

Statements are built once a table and kept, since building one anew costs about as much as running it. States are
literals in all of them: a bound value hides a partial index from the planner.
"""
