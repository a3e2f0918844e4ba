"""A consumer's project, as ``alembic init`` makes it from one of its own templates."""

from __future__ import annotations

import io
from contextlib import chdir, redirect_stdout
from pathlib import Path

from alembic import command
from alembic.config import Config

ORDERS = """\
import sqlalchemy as sa
metadata = sa.MetaData()
sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True))
"""
"""MetaData of the consumer's own: one table."""

SHARED = (
    ORDERS
    + """\
from brooq_sa import JobBase
class AppJob(JobBase):
    metadata = metadata
"""
)
"""The same with the job table in it."""

REVISION = '''\
"""{name}"""
from typing import Sequence, Union

from alembic import op
import sqlalchemy as sa

revision: str = "{name}"
down_revision: Union[str, Sequence[str], None] = {down!r}
branch_labels: Union[str, Sequence[str], None] = {labels!r}
depends_on: Union[str, Sequence[str], None] = {depends_on!r}


def upgrade({parameters}) -> None:
    {up}


def downgrade({parameters}) -> None:
    {down_again}
'''


class Consumer:
    """A folder with an Alembic project, of which each part can be changed as its owner would.

    Args:
        folder: of the project; made here.
        url: of its database.
        template: one of Alembic's.
        scripts: the name of the folder that has its scripts.
    """

    def __init__(self, folder: Path, url: str, template: str = "generic", scripts: str = "migrations") -> None:
        self.folder = folder
        self.url = url
        self.template = template
        self.scripts = folder / scripts
        folder.mkdir(parents=True)
        self.ini, self.toml = folder / "alembic.ini", folder / "pyproject.toml"
        with chdir(folder), redirect_stdout(io.StringIO()):
            command.init(Config("alembic.ini", toml_file="pyproject.toml"), scripts, template=template)
        placeholder = "driver://user:pass@localhost/dbname"
        self.edit(self.ini, f"{placeholder}2", url.replace("%", "%%")) if template == "multidb" else None
        self.edit(self.ini, placeholder, url.replace("%", "%%"))

    def edit(self, path: Path, old: str, new: str) -> None:
        """Replace a text that is there."""
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{old!r} is not in {path}:\n{text}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def declare(self, models: str = ORDERS) -> None:
        """Give env.py a target_metadata."""
        env = self.scripts / "env.py"
        old = "target_metadata = {}" if self.template == "multidb" else "target_metadata = None"
        new = "target_metadata = {'engine1': metadata}" if self.template == "multidb" else "target_metadata = metadata"
        self.edit(env, old, f"{models}\n{new}")

    def revise(
        self,
        name: str,
        down: str | tuple[str, ...] | None = None,
        *,
        up: str = "pass",
        down_again: str = "pass",
        labels: tuple[str, ...] | None = None,
        depends_on: str | None = None,
    ) -> Path:
        """A revision of the consumer's own, written as Alembic's template writes it."""
        path = self.scripts / "versions" / f"{name}.py"
        parameters = "engine_name: str" if self.template == "multidb" else ""
        source = REVISION.format(
            name=name,
            down=down,
            up=up,
            down_again=down_again,
            labels=labels,
            depends_on=depends_on,
            parameters=parameters,
        )
        path.write_text(source, encoding="utf-8")
        return path

    def revise_orders(self) -> Path:
        """The first revision: the table that `ORDERS` has."""
        return self.revise(
            "app_0001",
            up='op.create_table("orders", sa.Column("id", sa.Integer(), primary_key=True))',
            down_again='op.drop_table("orders")',
        )

    def texts(self) -> dict[str, bytes]:
        """Each file of the project and what is in it."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
