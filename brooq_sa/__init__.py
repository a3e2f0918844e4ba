"""Your jobs commit with your data: a job queue in the database that SQLAlchemy already talks to."""

__version__ = "0.1.0"
