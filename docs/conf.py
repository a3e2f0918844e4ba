"""How Sphinx builds this documentation: `tox run -e docs`."""

from importlib.metadata import version as installed_version

project = "brooq-sa"
author = "brooq-sa authors"
copyright = f"2026, {author}"  # noqa: A001 - Sphinx reads it by this name
release = version = installed_version("brooq-sa")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# A name in single backticks is linked where the reference has it, and is code everywhere else.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"brooq-sa {release}"
