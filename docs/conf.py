"""Sphinx builds the documentation: sphinx-build -W docs docs/_build

The notebook is executed by the build, on the CPU; its output is not committed, nor is the page of --help.
"""

import importlib.metadata
import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent.resolve()
sys.path.insert(0, str(DOCS))
import make_tables  # noqa: E402

(DOCS / "reference" / "commands.md").write_text(make_tables.commands_page(), encoding="utf-8")

# The notebook starts in an empty folder, with the package of this checkout.
os.environ["PYTHONPATH"] = str(DOCS.parent)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

project = "electra_jax"
author = "electra_jax contributors"
version = release = importlib.metadata.version("electra_jax")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
]
default_role = "literal"  # docstrings write code in single backticks
exclude_patterns = ["_build", "*.py"]

html_theme = "furo"
html_title = "electra_jax"
html_theme_options = {"top_of_page_buttons": []}
html_static_path = ["_static"]
html_css_files = ["wide_tables.css"]
html_show_sphinx = False

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
myst_fence_as_directive = ["math"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_execution_in_temp = True
nb_merge_streams = True

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
