"""For notebooks and scripts, without a server.

Grids and maps are HTML and SVG without scripts, with the pictures embedded. The widget is a thin layer over
`exploration.py`, because anywidget is an extra.
"""

from api.explore.likeness import Likeness as Likeness
