"""In place of the package of this name, see `conftest.py`: jsonschema does without it."""

raise ImportError("it compiles its grammars for 2 seconds")
