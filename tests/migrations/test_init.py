"""`brooq-sa alembic init`: what it changes in a project's files, and what it leaves alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from migrations.conftest import Run
from migrations.consumer import Consumer

TEMPLATES = ["generic", "async", "multidb", "pyproject", "pyproject_async"]
OURS = "brooq_sa:migrations/versions"


def heads(project: Consumer) -> set[str]:
    """As Alembic sees them."""
    config = Config(str(project.ini), toml_file=str(project.toml))
    return set(ScriptDirectory.from_config(config).get_heads())


def changed_lines(before: bytes, after: bytes) -> tuple[list[str], list[str]]:
    """Lines taken away, and lines that have come."""
    old, new = before.decode().splitlines(), after.decode().splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


@pytest.fixture(params=TEMPLATES)
def template(request: pytest.FixtureRequest) -> str:
    """One of Alembic's templates."""
    return str(request.param)


def test_joining_takes_one_command(
    make_consumer: Callable[..., Consumer], brooq_sa_command: Run, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each template the branch is there afterwards, no other line has changed, and again changes nothing (M2)."""
    project = make_consumer("sqlite:///jobs.sqlite", template)
    project.revise_orders()
    before = project.texts()
    database = ("--database", "engine2") if template == "multidb" else ()
    shown = brooq_sa_command(project.folder, "alembic", "init", "--yes", *database).output
    after = project.texts()

    monkeypatch.chdir(project.folder)
    assert heads(project) == {"app_0001", "brooq_0001"}
    configuration = "pyproject.toml" if "pyproject" in template else "alembic.ini"
    revision = "migrations/versions/app_0001.py"
    assert {name for name in after if after[name] != before.get(name)} == {configuration, revision}
    gone, come = changed_lines(before[configuration], after[configuration])
    if "pyproject" in template:
        assert (gone, [line.strip() for line in come]) == (
            [],
            ["version_locations = [", '"%(here)s/migrations/versions",', f'"{OURS}",'],
        )
    else:
        assert gone == ["path_separator = os"]
        assert [line for line in come if "brooq_database" not in line] == [
            "version_locations =",
            "    %(here)s/migrations/versions",
            f"    {OURS}",
            "path_separator = newline",
        ]
        assert ("brooq_database = engine2" in come) == (template == "multidb")
    assert 'branch_labels: Union[str, Sequence[str], None] = ("app",)' in after[revision].decode()
    assert all(f"+{line}" in shown for line in come)

    assert "Nothing to do" in brooq_sa_command(project.folder, "alembic", "init").output
    assert project.texts() == after


def test_nothing_changes_without_consent(make_consumer: Callable[..., Consumer], brooq_sa_command: Run) -> None:
    """The diff is shown, and a no, or nobody to answer, leaves every file as it was (M2)."""
    project = make_consumer("sqlite:///jobs.sqlite")
    before = project.texts()
    refused = brooq_sa_command(project.folder, "alembic", "init", code=1)
    assert f"+    {OURS}" in refused.output
    assert project.texts() == before


# Each as it was, and as it is then.
SEPARATORS = {
    "os, several": """\
path_separator = os
prepend_sys_path = .:lib
version_locations = %(here)s/a:%(here)s/migrations/versions
=>
path_separator = newline
prepend_sys_path =
    .
    lib
version_locations =
    %(here)s/a
    %(here)s/migrations/versions
    {ours}
""",
    "colon": """\
path_separator = :
version_locations = %(here)s/migrations/versions
=>
path_separator = newline
version_locations =
    %(here)s/migrations/versions
    {ours}
""",
    "newline": """\
path_separator = newline
version_locations =
  %(here)s/a
  # mine
  %(here)s/migrations/versions

# x
=>
path_separator = newline
version_locations =
  %(here)s/a
  # mine
  %(here)s/migrations/versions
  {ours}

# x
""",
    "newline, one": """\
path_separator = newline
version_locations = %(here)s/migrations/versions
=>
path_separator = newline
version_locations = %(here)s/migrations/versions
    {ours}
""",
    "space": """\
path_separator = space
version_locations = %(here)s/a %(here)s/migrations/versions
=>
path_separator = space
version_locations = %(here)s/a %(here)s/migrations/versions {ours}
""",
    "semicolon": """\
path_separator = ;
version_locations = %(here)s/a;%(here)s/migrations/versions
=>
path_separator = ;
version_locations = %(here)s/a;%(here)s/migrations/versions;{ours}
""",
    "none, several": """\
version_locations = %(here)s/a, %(here)s/migrations/versions
=>
version_locations = %(here)s/a, %(here)s/migrations/versions {ours}
""",
    "none at all": """\
prepend_sys_path = . lib
=>
prepend_sys_path =
    .
    lib
version_locations =
    %(here)s/migrations/versions
    {ours}
path_separator = newline
""",
    "the old one": """\
version_path_separator = os
version_locations = %(here)s/a:%(here)s/migrations/versions
=>
version_path_separator = newline
version_locations =
    %(here)s/a
    %(here)s/migrations/versions
    {ours}
""",
}


@pytest.mark.filterwarnings("ignore:(No path_separator|The version_path_separator):DeprecationWarning")
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("name", SEPARATORS)
def test_separator_changes_only_when_it_must(
    make_consumer: Callable[..., Consumer],
    brooq_sa_command: Run,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    newline: str,
) -> None:
    """With each separator our entry stays whole, and so do the entries that were there, and the ends of lines (M2)."""
    project = make_consumer("sqlite:///jobs.sqlite")
    project.revise_orders()
    (project.folder / "a").mkdir()
    given, expected = (text.replace("\n", newline) for text in SEPARATORS[name].split("=>\n"))
    head = f"# mine{newline}[other]{newline}path_separator = os{newline}[alembic]{newline}"
    head += f"script_location = %(here)s/migrations{newline}"
    tail = f"{newline}[loggers]{newline}keys = root"
    project.ini.write_bytes((head + given + tail).encode())

    brooq_sa_command(project.folder, "alembic", "init", "--yes")
    assert project.ini.read_bytes().decode() == head + expected.replace("{ours}", OURS) + tail
    monkeypatch.chdir(project.folder)
    assert heads(project) == {"app_0001", "brooq_0001"}


TOML = {
    "one line": (
        'version_locations = ["%(here)s/migrations/versions"] # x',
        '"%(here)s/migrations/versions", "{ours}"] # x',
    ),
    "one line, comma": ("version_locations = ['%(here)s/migrations/versions',]", 'versions\', "{ours}",]'),
    "lines": (
        'version_locations = [\n  "%(here)s/a", # "]"\n  "%(here)s/migrations/versions" # last\n]',
        '  "%(here)s/migrations/versions", # last\n  "{ours}",\n]',
    ),
    "lines, comma": (
        'version_locations = [\n\t"%(here)s/migrations/versions",\n]',
        '\t"%(here)s/migrations/versions",\n\t"{ours}",\n]',
    ),
}


@pytest.mark.parametrize("name", TOML)
def test_lists_in_pyproject(
    make_consumer: Callable[..., Consumer], brooq_sa_command: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A list in [tool.alembic] gets one entry more in its own style; the tables around it stay (M2)."""
    project = make_consumer("sqlite:///jobs.sqlite", "pyproject")
    project.revise_orders()
    (project.folder / "a").mkdir()
    given, expected = TOML[name]
    table = f'[tool.alembic]\nscript_location = "%(here)s/migrations"\n{given}\n'
    before = f'[project]\nname = "x" # mine\n\n{table}\n[tool.x]\na = [1]\n'
    project.toml.write_text(before, encoding="utf-8")
    brooq_sa_command(project.folder, "alembic", "init", "--yes")
    after = project.toml.read_text(encoding="utf-8")
    assert expected.replace("{ours}", OURS) in after
    gone, come = changed_lines(before.encode(), after.encode())
    assert len(come) <= 2
    assert len(gone) <= 1
    monkeypatch.chdir(project.folder)
    assert heads(project) == {"app_0001", "brooq_0001"}


UNEDITABLE = {
    "inline": 'tool.alembic = {script_location = "%(here)s/migrations"}\n',
    "dotted": 'tool.alembic.script_location = "%(here)s/migrations"\n',
}


@pytest.mark.parametrize("name", UNEDITABLE)
def test_what_cannot_be_edited_is_explained(
    make_consumer: Callable[..., Consumer], brooq_sa_command: Run, name: str
) -> None:
    """A file that has no plain place for it is left as it is, and the lines to write are printed (M2)."""
    project = make_consumer("sqlite:///jobs.sqlite", "pyproject")
    project.toml.write_text(UNEDITABLE[name], encoding="utf-8")
    told = brooq_sa_command(project.folder, "alembic", "init", "--yes", code=3).output
    assert "pyproject.toml cannot be edited safely" in told
    assert f'migrations/versions", "{OURS}"]' in told
    assert project.toml.read_text(encoding="utf-8") == UNEDITABLE[name]


def test_comments_amid_a_list_that_must_change(make_consumer: Callable[..., Consumer], brooq_sa_command: Run) -> None:
    """Comments are never lost: where a list with one in it would have to be rewritten, that is left to people (M2)."""
    project = make_consumer("sqlite:///jobs.sqlite")
    ini = "[alembic]\nscript_location = %(here)s/migrations\npath_separator = :\n"
    ini += "version_locations =\n  # why\n  %(here)s/a\n"
    project.ini.write_text(ini, encoding="utf-8")
    assert "cannot be edited safely" in brooq_sa_command(project.folder, "alembic", "init", "--yes", code=3).output
    assert project.ini.read_text(encoding="utf-8") == ini


@pytest.mark.parametrize("name", ["my project", "a,b", "a:b", "a b:c,d"])
@pytest.mark.parametrize("template", ["generic", "pyproject"])
def test_folders_with_odd_names(
    make_consumer: Callable[..., Consumer],
    brooq_sa_command: Run,
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    name: str,
) -> None:
    """Spaces, colons and commas in the name of the project's folder or its scripts' change nothing (M2)."""
    project = make_consumer("sqlite:///jobs.sqlite", template, name, scripts="my scripts, etc")
    project.revise_orders()
    brooq_sa_command(project.folder, "alembic", "init", "--yes")
    monkeypatch.chdir(project.folder)
    assert heads(project) == {"app_0001", "brooq_0001"}


def test_names_of_the_table_are_written_down(make_consumer: Callable[..., Consumer], brooq_sa_command: Run) -> None:
    """--table and --schema are kept where every command reads them, percent signs too, and can be changed (M3)."""
    for template in ("generic", "pyproject"):
        project = make_consumer("sqlite:///jobs.sqlite", template, template)
        brooq_sa_command(project.folder, "alembic", "init", "--yes", "--table", "a%b", "--schema", "queue")
        config = Config(str(project.ini), toml_file=str(project.toml))
        assert config.get_alembic_option("brooq_table") == "a%b"
        assert config.get_alembic_option("brooq_schema") == "queue"
    project = make_consumer("sqlite:///jobs.sqlite", "generic", "again")
    for table in ("one", "two"):
        brooq_sa_command(project.folder, "alembic", "init", "--yes", "--table", table)
    assert Config(str(project.ini)).get_alembic_option("brooq_table") == "two"


def test_several_databases_want_a_name(make_consumer: Callable[..., Consumer], brooq_sa_command: Run) -> None:
    """Of several databases one must be named, and the error lists them (M3)."""
    project = make_consumer("sqlite:///jobs.sqlite", "multidb")
    before = project.texts()
    for given in ((), ("--database", "engine3")):
        told = brooq_sa_command(project.folder, "alembic", "init", "--yes", *given, code=1).output
        assert "engine1, engine2" in told
    assert project.texts() == before


def test_branches_of_ones_own_keep_their_names(make_consumer: Callable[..., Consumer], brooq_sa_command: Run) -> None:
    """A label that is there stays, and several heads are named rather than labelled (M2)."""
    project = make_consumer("sqlite:///jobs.sqlite")
    first = project.revise("shop_1", labels=("shop",))
    before = first.read_bytes()
    brooq_sa_command(project.folder, "alembic", "init", "--yes")
    assert first.read_bytes() == before

    other = make_consumer("sqlite:///jobs.sqlite", name="other")
    other.revise("one")
    other.revise("two")
    told = brooq_sa_command(other.folder, "alembic", "init", "--yes", code=3).output
    assert "several heads" in told
    assert "one" in told
    assert "two" in told


def test_no_revision_yet(
    make_consumer: Callable[..., Consumer], brooq_sa_command: Run, alembic: Run, empty_sqlite_url: str
) -> None:
    """Whoever has no revision is told how to make the first, which would otherwise land in our folder (M2)."""
    project = make_consumer(empty_sqlite_url)
    told = brooq_sa_command(project.folder, "alembic", "init", "--yes").output
    [line] = [line.strip() for line in told.splitlines() if "alembic revision" in line]
    assert line == 'alembic revision --head base --branch-label app --version-path migrations/versions -m "..."'
    alembic(project.folder, *line.replace('"', "").split()[1:])
    assert len(list((project.scripts / "versions").glob("*.py"))) == 1
    alembic(project.folder, "upgrade", "heads")


def test_no_alembic_here(tmp_path: Path, brooq_sa_command: Run) -> None:
    """Without a project it says so, and what else there is."""
    told = brooq_sa_command(tmp_path, "alembic", "init", code=1).output
    assert "There is no Alembic here" in told
    assert "There is no file" in brooq_sa_command(tmp_path, "alembic", "init", "-c", "no.ini", code=1).output
    (tmp_path / "alembic.ini").write_text("[alembic", encoding="utf-8")
    assert "Alembic cannot read" in brooq_sa_command(tmp_path, "alembic", "init", code=1).output


def test_another_file_and_section(make_consumer: Callable[..., Consumer], brooq_sa_command: Run) -> None:
    """-c and -n find what they find for Alembic (M2)."""
    project = make_consumer("sqlite:///jobs.sqlite")
    project.edit(project.ini, "[alembic]", "[shop]")
    shutil.move(project.ini, project.folder / "other.ini")
    where = ("-c", "other.ini", "-n", "shop")
    brooq_sa_command(project.folder, "alembic", "init", "--yes", *where)
    assert OURS in (project.folder / "other.ini").read_text(encoding="utf-8")
    assert "Nothing to do" in brooq_sa_command(project.folder, "alembic", "init", *where).output


def test_as_people_call_it(make_consumer: Callable[..., Consumer]) -> None:
    """The installed command asks, takes a yes from standard input, and the branch is there."""
    project = make_consumer("sqlite:///jobs.sqlite")
    done = subprocess.run(
        [sys.executable, "-m", "brooq_sa", "alembic", "init"],
        cwd=project.folder,
        input="y\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Apply this?" in done.stderr
    assert "Done. Next: alembic upgrade brooq@head" in done.stdout
