"""The base that ``MODULE:BASE`` names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from .failing import Failure

if TYPE_CHECKING:
    from brooq_sa.jobs import JobBase


def load_base(target: str) -> type[JobBase]:
    """The base that `target` names.

    Raises:
        click.BadParameter: there is no such module, it has no such attribute, or that is no base.
        Failure: the module is there, and raised an error while it was imported.
    """
    module_name, colon, attribute = target.partition(":")
    if not module_name or not attribute.isidentifier():
        known = _bases_in(_import(module_name)) if module_name and not colon else []
        raise click.BadParameter(f"{target!r} is not MODULE:BASE. {_choice(module_name, known)}")
    module = _import(module_name)
    if not hasattr(module, attribute):
        raise click.BadParameter(
            f"Module {module_name!r} ({_file(module)}) has no attribute {attribute!r}."
            f" {_choice(module_name, _bases_in(module))}"
        )
    return _checked(getattr(module, attribute), module, attribute)


def _import(name: str) -> ModuleType:
    """The module, imported part by part, so that one which is absent is told apart from one that fails."""
    _reach_current_folder()
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        _import_part(".".join(parts[:end]), name)
    return sys.modules[name]


def _import_part(name: str, wanted: str) -> None:
    try:
        found = name in sys.modules or importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        found = False  # what comes before the last dot is no package
    if not found:
        inside = "" if name == wanted else f" (there is no {name!r})"
        raise click.BadParameter(
            f"Module {wanted!r} was not found{inside}. Looked in the current folder, and: {_places()}."
        )
    try:
        importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Failure(
            f"Module {name!r} was found, but failed while it was imported: {_what_and_where(error)}"
        ) from error


def _reach_current_folder() -> None:
    # Appended, so that nothing in it shadows an installed module.
    if (folder := os.getcwd()) not in sys.path and "" not in sys.path:  # noqa: PTH109 - sys.path holds strings
        sys.path.append(folder)


def _places() -> str:
    return ", ".join(place for place in sys.path if place and place != os.getcwd())  # noqa: PTH109 - as above


def _what_and_where(error: BaseException) -> str:
    """The error, and the line of the user's code that it came from."""
    what = "".join(traceback.format_exception_only(error)[-1:]).strip()
    if isinstance(error, SyntaxError) and error.filename:
        return f"{what} ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(("<frozen ", *_libraries()))]
    return f"{what} ({own[-1].filename}:{own[-1].lineno})" if own else what


def _libraries() -> tuple[str, ...]:
    """Where code lies that is not the user's: the standard library, what is installed, and this package."""
    paths = sysconfig.get_paths()
    return (*(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), str(Path(__file__).parents[1]))


def _file(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "a namespace package"


def _bases_in(module: ModuleType) -> list[str]:
    return sorted(name for name, value in vars(module).items() if _is_base(value))


def _is_base(value: object) -> bool:
    from brooq_sa.jobs import JobBase

    return isinstance(value, type) and JobBase in value.__bases__


def _choice(module_name: str, bases: list[str]) -> str:
    if not bases:
        return "Give a module and the base in it, such as app.jobs:AppJob."
    return f"Give {' or '.join(f'{module_name}:{name}' for name in bases)}."


def _checked(value: Any, module: ModuleType, attribute: str) -> type[JobBase]:
    from brooq_sa.jobs import JobBase

    if _is_base(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, type) and issubclass(value, JobBase) and value is not JobBase:
        base = next(each for each in value.__mro__ if _is_base(each))
        raise click.BadParameter(
            f"{attribute!r} is a job class; its base is {base.__name__!r}. Give {base.__module__}:{base.__name__}."
        )
    raise click.BadParameter(
        f"{attribute!r} in {module.__name__!r} is not a base: a base is a direct subclass of brooq_sa.JobBase."
        f" {_choice(module.__name__, _bases_in(module))}"
    )
