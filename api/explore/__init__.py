"""For notebooks and scripts, without a server.

Grids and maps are HTML and SVG without scripts, with the pictures embedded. The widget, which
needs an extra, is the same grid with buttons.
"""

from api.explore.likeness import Likeness as Likeness
